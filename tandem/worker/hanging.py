"""Hand-overs that hang, said in the log: while one does, nothing fails and nothing is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tandem.worker.core.leg import Leg, LegStage

log = logging.getLogger(__name__)
HANGS_SECONDS = 30.0
"""A leg that has waited for so long for its KV, or for decode to take it, is said to hang; and each
time that the worker has looked for as long again."""


class Hanging:
    """What hangs in one worker, whose legs are each a phase of a hand-over."""

    def __init__(self, worker: str) -> None:
        """`worker`: its name, for the log."""
        self._worker = worker
        self._next = 0.0

    def look(self, now: float, legs: Iterable[Leg]) -> None:
        """Write a line for each peer with legs that hang, every HANGS_SECONDS."""
        if now < self._next:
            return
        since: dict[str, list[float]] = {}
        for leg in legs:
            if leg.stage is LegStage.WAITING and now - leg.started_at >= HANGS_SECONDS:
                since.setdefault(leg.kv_peer, []).append(leg.started_at)
        for peer, began in since.items():
            log.warning(
                "hand-overs hang: no KV has moved for them yet",
                extra={
                    "worker": self._worker,
                    "peer": peer,
                    "count": len(began),
                    "seconds": round(now - min(began), 1),
                },
            )
        if since:
            self._next = now + HANGS_SECONDS
