"""A request on its way through an executor: enqueued, sent, and kept until it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tandem.errors import TandemError
from tandem_executor.requests import Request
from tandem_executor.unread import Unread


class Asked(NamedTuple):
    """A request as it is enqueued: what is wrong with it, or else what it may bring."""

    request: Request
    fault: TandemError | None = None
    sequences: int = 1
    tokens: int = 1
    """The most that may come of it, of all sequences together."""
    seconds: float = 0.0
    """Until it times out."""
    logits_rows: int = 0
    """The most rows of logits that it may bring."""


class Start(NamedTuple):
    """A request that is to be sent now."""

    request_id: int
    request: Request
    deadline: float


@dataclass(slots=True)
class Entry:
    """A request whose final response has not been read."""

    asked: Asked
    unread: Unread
    deadline: float
    started: bool = False
    waits: bool = True
    """No response has come yet."""
    credit: int = 0
    """What it holds of `max_unread_tokens`: unread tokens, and those that may still come."""
    logits_rows: int = 0
    """Rows that the request holds of `max_logits_rows`, until its responses were read."""

    def spare(self) -> int:
        """Tokens that an ended request need not hold: they never came, or nobody is shown them."""
        return self.credit - self.unread.unread_tokens
