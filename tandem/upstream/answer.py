"""What a request's handler is given of the answer, and what is asked of the handler's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from tandem.endings import FinishReason
from tandem.v1 import common_pb2

Row = tuple[int, str, Sequence[int], Sequence[common_pb2.TokenLogprobs], int]
"""Choice, text, token ids (where asked for), log-probabilities (where asked for): its own, or of a
part of its prompt; and how many tokens it is of.
"""


class RequestClient(Protocol):
    """The client of a request, as far as the request must know it: it can go away."""

    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        """Until the answer is complete: call `on_lost` once the client has gone, and `on_stall`
        once it has left its answer unread for too long. A new call replaces the last one's.
        """

    def abort(self) -> None:
        """Send the client nothing more, not even what is buffered for it."""


class ChoiceFinish(NamedTuple):
    choice: int
    reason: FinishReason
    stop_reason: str | None
    """The matched stop string, a hook's reason or a classifier's name; None: end of sequence."""
    external_scores: str = ""
    """A JSON object, where it was asked for."""
    stop_tokens: tuple[int, ...] = ()
    """The stop word that was met, or the stop token that was asked for."""
    voucher: bytes = b""
    """What a context-only request leaves."""
    withheld: bool = False
    """A hook or a classifier ended it."""


def joined(rows: Sequence[Row]) -> Iterator[Row]:
    """One row for each choice, with all that its rows have."""
    by_choice: dict[int, list[Row]] = {}
    for row in rows:
        by_choice.setdefault(row[0], []).append(row)
    for choice, mine in by_choice.items():
        _, texts, token_ids, logprobs, tokens = zip(*mine, strict=True)
        yield choice, "".join(texts), [*chain(*token_ids)], (*chain(*logprobs),), sum(tokens)
