"""Runs in SGLang's scheduler processes: what is wrong with other engines, said once of each."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)
_MOST = 256
_LONGEST = 200


class Complaints:
    """Each is a line of the log once, and no more of them are than a bound: who connects may say
    anything, as often as it likes.
    """

    def __init__(self, what: str) -> None:
        """`what`: the line, which peer and reason are added to."""
        self._what = what
        self._made: set[tuple[str, str]] = set()

    def make(self, peer: str, reason: str) -> None:
        complaint = (peer[:_LONGEST], reason[:_LONGEST])
        if complaint not in self._made and len(self._made) < _MOST:
            self._made.add(complaint)
            log.error(self._what, extra={"peer": complaint[0], "reason": complaint[1]})
