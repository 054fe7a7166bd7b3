"""What a router makes of workers whose output cannot be read, judged from outside.

While it looks at a worker, because a frontend could not read its output, whatever can be seen to be
wrong counts, and nothing else does. A worker is taken out when so many faults as the settings say
lie within the time in which they add up, and not before; then it is left alone for a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

import tandem_router.conduct
from tandem.v1 import common_pb2
from tandem.wire.frames import MOST_ROW_TOKENS, parse
from tandem_router.conduct import Conduct
from tandem_router.inspection import SECONDS
from tandem_router.links import WorkerLink


class Doubtful(NamedTuple):
    """A payload for a frontend that is there."""

    frontend: int
    payload: bytes
    garbled: bool
    """The worker spoilt it, or something of what it names before."""


class ConductRules:
    """One router's."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        eject_after: int,
        eject_seconds: float,
        elsewhere: Callable[[str, int, int], bool],
        fault: Callable[[str], None],
    ) -> None:
        """`eject_after`: faults; 0: never. `elsewhere`: whether a worker is not the one on which an
        open sequence of a frontend runs.
        """
        self._now, self._elsewhere = now, elsewhere
        self._eject_after, self._eject_seconds = eject_after, eject_seconds
        self._fault = fault
        self._doubted: dict[WorkerLink, float] = {}
        """Streams to workers, and until when they are looked at."""
        self._faults: defaultdict[Conduct, list[float]] = defaultdict(list)
        self._away: dict[Conduct, float] = {}
        """Those that were taken out, and until when."""

    def complained(self, link: WorkerLink) -> None:
        """A frontend's complaint of what came by it has arrived."""
        self._doubted[link] = self._now() + SECONDS

    def worker_up(self, address: str, conduct: Conduct) -> None:
        if self._now() < self._away.pop(conduct, 0.0):
            self._fault(f"{address} is used again, and was taken out")

    def judge(
        self,
        address: str,
        link: WorkerLink,
        payloads: Sequence[Doubtful],
        relay: Callable[[], object],
    ) -> None:
        """What the router makes of a frame, which `relay` passes on."""
        conduct, now = link.conduct, self._now()
        looked_at = now <= self._doubted.get(link, -1.0)
        wrong = sum(self._is_wrong(address, each) for each in payloads) if looked_at else 0
        most = sum(each.garbled for each in payloads) if looked_at else 0
        before = conduct.faults
        relay()
        counted = conduct.faults - before
        if not wrong <= counted <= max(wrong, most):
            self._fault(f"{counted} faults of {address} are counted, not {wrong} to {most}")
        faults = self._faults[conduct]
        faults += [now] * counted
        within = [each for each in faults if now - each <= tandem_router.conduct.WITHIN_SECONDS]
        enough = 0 < self._eject_after <= len(within)
        if conduct.condemned != enough:
            self._fault(f"{address} is to be taken out: {conduct.condemned}, for {faults}")
        if conduct.condemned:
            faults.clear()
            self._away[conduct] = now + self._eject_seconds

    def _is_wrong(self, address: str, doubtful: Doubtful) -> bool:
        """Whether that can be seen of a payload alone, or of where its sequences run."""
        try:
            columns = parse(doubtful.payload)
        except DecodeError:
            return True
        lengths = {
            len(columns.sequence),
            len(columns.offset),
            len(columns.token_count),
            len(columns.text),
        }
        if len(lengths) > 1 or max(columns.token_count, default=0) > MOST_ROW_TOKENS:
            return True
        here = {*columns.sequence}
        elsewhere = any(self._elsewhere(address, doubtful.frontend, each) for each in here)
        return elsewhere or _has_gap(columns)


def _has_gap(columns: common_pb2.TokenColumns) -> bool:
    """Whether rows of a sequence do not follow each other."""
    last: dict[int, int] = {}
    for sequence, offset in zip(columns.sequence, columns.offset, strict=True):
        if last.get(sequence, offset - 1) != offset - 1:
            return True
        last[sequence] = offset
    return False
