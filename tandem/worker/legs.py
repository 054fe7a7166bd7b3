"""All open legs of a worker: from the router's command to the one event that closes each.

A leg is closed only when its output has ended and its engine has let go of it; see Leg. Everything
here runs on the event loop, and nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable

from tandem.engine.base import Engine
from tandem.errors import (
    DeadlineError,
    DrainingError,
    QueueFullError,
    RequestError,
    TandemError,
)
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.intake import Intake, trace_id_of
from tandem.worker.judges import Judges
from tandem.worker.leg import Closing, Group, Leg
from tandem.worker.link import RouterLink
from tandem.worker.spans import LegSpans
from tandem.worker.tally import WorkerTally

log = logging.getLogger(__name__)


class DuplicateLegError(Exception):
    """A router used a leg's number twice on one stream."""


class Legs:
    """The table of open legs. Each ends with exactly one LegClosed, unless its router has gone."""

    def __init__(
        self,
        *,
        phase: common_pb2.Phase.ValueType,
        worker: str,
        intake: Intake,
        engine: Engine,
        max_legs: int,
        tally: WorkerTally,
        judges: Judges,
        spans: LegSpans | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spans`: what becomes of traced legs."""
        self._phase = phase
        self._worker = worker
        self._intake = intake
        self._engine = engine
        self._judges = judges
        self._max_legs = max_legs
        self._tally = tally
        self._spans = spans
        self.now = clock
        """Seconds, of all times of legs."""
        self._open: dict[int, Leg] = {}
        self._groups: dict[Group, list[Leg]] = {}
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    def __len__(self) -> int:
        return len(self._open)

    def find(self, request_id: int) -> Leg | None:
        """An open leg by the number that engine and hooks know it by."""
        return self._open.get(request_id)

    # --- what routers say ------------------------------------------------------------------------

    def start(self, link: RouterLink, command: worker_pb2.StartLeg) -> None:
        """Begin a leg, or close it at once with the reason why not. Raises DuplicateLegError."""
        if command.leg in link.legs:
            raise DuplicateLegError(f"leg {command.leg} is open already")
        try:
            if self.draining:
                raise DrainingError("this worker is shutting down")
            if len(self._open) >= self._max_legs:
                raise QueueFullError(f"this worker runs {self._max_legs} sequences already")
            accepted = self._intake.accept(command)
            leg = Leg(
                link=link,
                command=command,
                task=accepted.task,
                request_id=accepted.request.request_id,
                prompt_tokens=len(accepted.request.token_ids),
                output=accepted.output,
                now=self.now(),
            )
            self._engine.submit(accepted.request)
        except TandemError as error:
            self._refuse(link, command, error)
            return
        self._judges.open(leg, accepted)
        self._open[leg.request_id] = leg
        link.legs[leg.number] = leg
        self._groups.setdefault(leg.group, []).append(leg)
        self.idle.clear()

    def release(self, link: RouterLink, number: int) -> None:
        """Prefill's verdict lets a decode leg's output go. Unknown: it has ended meanwhile."""
        leg = link.legs.get(number)
        if leg is not None:
            leg.release()
            link.notify()
            self.close_when_done(leg)

    def cancel(self, link: RouterLink, number: int, reason: str) -> None:
        """End a leg, whatever it waits for. Unknown: it has ended meanwhile."""
        leg = link.legs.get(number)
        if leg is not None:
            self.end(leg, Closing("cancelled", reason=reason))

    def drop(self, link: RouterLink) -> None:
        """The router's stream is gone: end all legs that came by it."""
        for leg in list(link.legs.values()):
            self.end(leg, Closing("cancelled", reason="router_lost"))

    # --- time, and the end of everything ---------------------------------------------------------

    def sweep(self) -> None:
        """End what is past its deadline. Called once a second."""
        now = self.now()
        overdue = [leg for leg in self._open.values() if leg.deadline <= now]
        for leg in overdue:
            self.end(leg, Closing("failed", error=DeadlineError("the request's time ran out")))

    def fail_all(self, error: TandemError, *, settled: bool = False) -> None:
        """End every open leg. `settled`: the engine is gone, and will not say so for each."""
        for leg in list(self._open.values()):
            leg.settled = leg.settled or settled
            self.end(leg, Closing("failed", error=error, retryable=not leg.started))

    # --- how a leg ends --------------------------------------------------------------------------

    def end(self, leg: Leg, closing: Closing) -> None:
        """Nothing more is shown of the leg. What ended it first counts, but a failure from outside
        also ends what is held for the router's release.
        """
        if leg.over and leg.closing is not None and leg.held is None:
            self.close_when_done(leg)
            return
        if closing.error is not None and not closing.error.phase:
            closing.error.phase = self._phase
        leg.closing = closing
        if not leg.over or leg.muted:
            leg.over, leg.muted = True, False
            self._judges.abort(leg)
        if closing.outcome not in ("finished", "terminated"):
            leg.held = None
        else:
            leg.report(phase=self._phase, worker=self._worker, now=self.now())
            if self._phase == common_pb2.PHASE_DECODE:
                leg.finish()
        self.cancel_engine(leg)
        self.close_when_done(leg)

    def mute_siblings(self, leg: Leg) -> None:
        """The other outputs of a terminated request show nothing more. The router, told of the
        terminate, ends their sequences and cancels their legs.
        """
        for sibling in self._groups.get(leg.group, ()):
            if sibling is not leg and not sibling.over:
                sibling.over = sibling.muted = True
                sibling.closing = sibling.held = None
                self._judges.abort(sibling)
                self.cancel_engine(sibling)

    def cancel_engine(self, leg: Leg) -> None:
        if not leg.settled and not leg.engine_cancelled:
            leg.engine_cancelled = True
            self._engine.cancel(leg.request_id)

    def close_when_done(self, leg: Leg) -> None:
        if leg.closing is None or not leg.settled or leg.held is not None or not leg.over:
            return
        link = leg.link
        if link.legs.pop(leg.number, None) is None:
            return
        del self._open[leg.request_id]
        _forget(self._groups, leg)
        link.events.append(leg.closing.event(leg.number))
        link.notify()
        self._tally.closed(leg.closing)
        self._tally.ran(
            seconds=self.now() - leg.started_at,
            prompt_tokens=leg.prompt_tokens,
            cached_tokens=leg.cached_tokens,
        )
        if leg.parent_span and self._spans is not None:
            self._spans.closed(leg, leg.closing, self.now())
        self._log_end(leg, leg.closing)
        if not self._open:
            self.idle.set()

    def _refuse(self, link: RouterLink, command: worker_pb2.StartLeg, error: TandemError) -> None:
        if not error.phase:
            error.phase = self._phase
        retryable = not isinstance(error, RequestError)
        closing = Closing("failed", error=error, retryable=retryable)
        link.events.append(closing.event(command.leg))
        link.notify()
        self._tally.closed(closing)
        trace_id = trace_id_of(command.task)
        if command.parent_span and trace_id and self._spans is not None:
            self._spans.refused(command, trace_id, error, self.now())
        log.info(
            "leg refused",
            extra={
                "trace_id": trace_id,
                "leg": command.leg,
                "code": error.code,
                "peer": link.peer,
            },
        )

    def _log_end(self, leg: Leg, closing: Closing) -> None:
        error = closing.error
        level = logging.DEBUG if error is None else logging.WARNING
        if not log.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "trace_id": leg.trace_id,
            "request_id": leg.request_id,
            "leg": leg.number,
            "seconds": round(self.now() - leg.started_at, 3),
        }
        if error is None:
            log.debug("leg ended", extra={**fields, "outcome": closing.outcome})
        else:
            reason = error.message + _where(error.__cause__)
            log.warning("leg failed", extra={**fields, "code": error.code, "reason": reason})


def _where(cause: BaseException | None) -> str:
    """Where user code raised. Its own words stay out of the log: they may quote the text."""
    if cause is None or not (frames := traceback.extract_tb(cause.__traceback__)):
        return ""
    return f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})"


def _forget(groups: dict[Group, list[Leg]], leg: Leg) -> None:
    members: Iterable[Leg] = groups.pop(leg.group, ())
    if rest := [member for member in members if member is not leg]:
        groups[leg.group] = rest
