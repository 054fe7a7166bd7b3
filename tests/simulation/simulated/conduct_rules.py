"""What a router makes of workers whose output cannot be read, judged from outside.

While it looks at a worker, because a frontend could not read its output, whatever can be seen to be
wrong counts, and nothing else does. A worker that is taken out for its faults is left alone for a
time; health_books.py says who is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tandem.complaints import Complaints
from tandem.v1 import common_pb2
from tandem.wire.frames import MOST_ROW_TOKENS, parse
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
        eject_seconds: float,
        faults: Callable[[str], int],
        elsewhere: Callable[[str, int, int], bool],
        fault: Callable[[str], None],
    ) -> None:
        """`faults`: how many of a worker are counted. `elsewhere`: whether a worker is not the one
        on which an open sequence of a frontend runs.
        """
        self._now, self._elsewhere = now, elsewhere
        self._eject_seconds, self._faults = eject_seconds, faults
        self._fault = fault
        self._doubted: dict[WorkerLink, float] = {}
        """Streams to workers, and until when they are looked at."""
        self._away: dict[Complaints, float] = {}
        """Workers that were taken out, each for as long as it is listed, and until when."""

    def complained(self, link: WorkerLink) -> None:
        """A frontend's complaint of what came by it has arrived."""
        self._doubted[link] = self._now() + SECONDS

    def worker_up(self, address: str, link: WorkerLink) -> None:
        if self._now() < self._away.pop(link.complaints, 0.0):
            self._fault(f"{address} is used again, and was taken out")

    def judge(
        self,
        address: str,
        link: WorkerLink,
        payloads: Sequence[Doubtful],
        relay: Callable[[], object],
    ) -> None:
        """What the router makes of a frame, which `relay` passes on."""
        now = self._now()
        looked_at = now <= self._doubted.get(link, -1.0)
        wrong = sum(self._is_wrong(address, each) for each in payloads) if looked_at else 0
        most = sum(each.garbled for each in payloads) if looked_at else 0
        before = self._faults(address)
        relay()
        counted = self._faults(address) - before
        if not wrong <= counted <= max(wrong, most):
            self._fault(f"{counted} faults of {address} are counted, not {wrong} to {most}")
        if link.given_up is not None and link.given_up.died:
            self._away[link.complaints] = now + self._eject_seconds

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
