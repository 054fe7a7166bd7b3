"""Runs in SGLang's scheduler processes: what is wrong with other engines, said once of each."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)
_MOST = 256
_LONGEST = 200


class SaidOnce:
    """Each line comes once, and no more of them than a bound: who connects may say anything, as
    often as it likes.
    """

    def __init__(self, what: str) -> None:
        """`what`: the line, which peer and reason are added to."""
        self._what = what
        self._said: set[tuple[str, str]] = set()

    def say(self, peer: str, reason: str) -> None:
        line = (peer[:_LONGEST], reason[:_LONGEST])
        if line not in self._said and len(self._said) < _MOST:
            self._said.add(line)
            log.error(self._what, extra={"peer": line[0], "reason": line[1]})
