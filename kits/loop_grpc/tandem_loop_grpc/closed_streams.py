"""Streams that are over, for as long as their frames may still be under way."""

from __future__ import annotations

from typing import Final

_MOST: Final = 256


class ClosedStreams:
    """The last ones of a connection, and which of them this end gave up while the peer still sent.

    What comes for those is passed over (RFC 9113, 5.1): the peer did not know yet.
    """

    def __init__(self) -> None:
        self._given_up: dict[int, bool] = {}

    def add(self, number: int, *, given_up: bool) -> None:
        """Note a closed stream, and forget the oldest beyond the bound."""
        self._given_up[number] = given_up
        if len(self._given_up) > _MOST:
            del self._given_up[next(iter(self._given_up))]

    def __contains__(self, number: int) -> bool:
        return number in self._given_up

    def given_up(self, number: int) -> bool:
        """Whether this end ended it, and the peer may not have known."""
        return self._given_up.get(number, False)
