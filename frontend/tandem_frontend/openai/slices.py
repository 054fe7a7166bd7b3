"""How much of an answer is written at once, so that a large one keeps nobody waiting: the event
loop has its turn between slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from tandem.upstream.answer import Row

SLICE_COST = 4096
"""Log-probabilities, or rows, that are written at once: that takes 20 ms at most."""
SLICE_BYTES = 256 * 1024
"""JSON that is written at once."""


def first(rows: Sequence[Row]) -> int:
    """How many of the first rows make a slice: one, or as many as cost no more than one may."""
    if len(rows) == 1:
        return 1
    left = SLICE_COST
    for count, (_, _, _, logprobs, _) in enumerate(rows):
        left -= 1
        for entry in logprobs:
            left -= len(entry.token_id) + len(entry.top_token_id)
        if left < 0:
            return max(1, count)
    return len(rows)


def slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    begin = 0
    while begin < len(rows):
        part = rows[begin : begin + SLICE_COST]
        count = first(part)
        yield part[:count]
        begin += count


def joined(pieces: Iterator[bytes]) -> bytes:
    """The next pieces, as many as make a slice; fewer bytes than that: they were the last."""
    taken: list[bytes] = []
    size = 0
    while size < SLICE_BYTES and (piece := next(pieces, None)) is not None:
        taken.append(piece)
        size += len(piece)
    return b"".join(taken)


async def batches(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """All pieces, joined to slices. Others have their turn between two of them."""
    while len(batch := joined(pieces)) >= SLICE_BYTES:
        yield batch
        await asyncio.sleep(0)
    yield batch
