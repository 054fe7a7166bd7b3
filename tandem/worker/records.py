"""What a worker keeps of legs that are over: counters, spans and lines of the log. Of canaries it
keeps nothing: they are no clients' and their router says how they end.
"""

from __future__ import annotations

import logging

from tandem.errors import TandemError
from tandem.usercode.call import place_of
from tandem.v1 import worker_pb2
from tandem.worker.core.leg import Leg
from tandem.worker.counters import WorkerCounters
from tandem.worker.spans import LegSpans

log = logging.getLogger(__name__)


class Records:
    """Written when a leg ends; nothing is written for a token."""

    def __init__(self, counters: WorkerCounters, spans: LegSpans | None = None) -> None:
        """`spans`: what becomes of traced legs; None: no span is kept."""
        self.counters = counters
        self._spans = spans

    def submitted(self, request_id: int, command: worker_pb2.StartLeg, seconds: float) -> None:
        """The engine was given a request, which took CPU time."""
        self.counters.submit_seconds += seconds
        if command.parent_span and self._spans is not None:
            self._spans.submitted(request_id, seconds)

    def closed(self, leg: Leg, at: float) -> None:
        """A leg that ran is over."""
        if leg.canary:
            return
        closing = leg.closing
        assert closing is not None
        seconds = at - leg.started_at
        self.counters.closed(closing)
        self.counters.ran(
            seconds=seconds, prompt_tokens=leg.prompt_tokens, cached_tokens=leg.cached_tokens
        )
        if leg.parent_span and self._spans is not None:
            self._spans.closed(leg, closing, at)
        error = closing.error
        level = logging.DEBUG if error is None else logging.WARNING
        if not log.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "trace_id": leg.trace_id,
            "request_id": leg.request_id,
            "leg": leg.number,
            "seconds": round(seconds, 3),
        }
        if error is None:
            log.debug("leg ended", extra={**fields, "outcome": closing.outcome})
        else:
            log.warning(
                "leg failed", extra={**fields, "code": error.code, "reason": _reason(error)}
            )

    def refused(
        self,
        command: worker_pb2.StartLeg,
        error: TandemError,
        at: float,
        *,
        peer: str,
        trace_id: str | None,
    ) -> None:
        """A leg did not begin. `peer`: the router that wanted it. `trace_id`: as its task says, if
        it does.
        """
        if command.canary:
            return
        self.counters.refused(error)
        if command.parent_span and trace_id and self._spans is not None:
            self._spans.refused(command, trace_id, error, at)
        log.info(
            "leg refused",
            extra={
                "trace_id": trace_id,
                "leg": command.leg,
                "code": error.code,
                "reason": place_of(error.__cause__),
                "peer": peer,
            },
        )


def _reason(error: TandemError) -> str:
    """With the place where code raised that was not ours to trust. Its own words stay out of the
    log: they may quote the text.
    """
    return f"{error.message} {place_of(error.__cause__)}".strip()
