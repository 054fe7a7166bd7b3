"""Reads a doubtful worker's output, as frontends do: a frontend's word alone takes no worker out.

Nothing is read of a worker that nobody complains of.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from tandem.v1 import common_pb2
from tandem.wire import frames

SECONDS = 60.0
"""How long an inspection goes on after the last complaint."""
MOST_SEQUENCES = 65_536
"""What is counted of more is forgotten, the oldest first: a forgotten one is believed anew."""


class Inspection:
    """The inspection of one worker's stream, which believes what came before it began."""

    def __init__(self, until: float) -> None:
        self.until = until
        """On the relay's clock."""
        self._rows: dict[tuple[int, int], int] = {}
        """How many rows have come, by frontend and sequence."""

    def fault(self, frontend: int, payload: bytes, elsewhere: Callable[[int], bool]) -> str:
        """What is wrong with a payload for a frontend; empty: nothing. `elsewhere`: whether a
        sequence runs on another worker.
        """
        try:
            parsed = frames.parse(payload)
        except DecodeError:
            return "a payload that is no tandem.v1.TokenColumns"
        rows = len(parsed.sequence)
        if not rows == len(parsed.offset) == len(parsed.token_count) == len(parsed.text):
            return "columns that differ in length"
        if max(parsed.token_count, default=0) > frames.MOST_ROW_TOKENS:
            return "a number that cannot be"
        if len(parsed.token_id) > sum(parsed.token_count):
            return "token ids of no row"
        if any(elsewhere(sequence) for sequence in {*parsed.sequence}):
            return "rows of sequences that run elsewhere"
        pairs = zip(parsed.sequence, parsed.offset, strict=True)
        gaps = [self._gap(frontend, sequence, offset) for sequence, offset in pairs]
        gaps += [self._wrong_end(frontend, finish) for finish in parsed.finish]
        return "a row is missing or comes again" if any(gaps) else ""

    def _gap(self, frontend: int, sequence: int, offset: int) -> bool:
        before = self._rows.get((frontend, sequence), offset)
        self._rows[frontend, sequence] = offset + 1
        if len(self._rows) > MOST_SEQUENCES:
            del self._rows[next(iter(self._rows))]
        return offset != before

    def _wrong_end(self, frontend: int, finish: common_pb2.Finish) -> bool:
        return self._rows.pop((frontend, finish.sequence), finish.rows) != finish.rows
