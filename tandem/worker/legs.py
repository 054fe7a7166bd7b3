"""All open legs of a worker: from the router's command to the one event that closes each.

A leg is closed only when its output has ended and its engine has let go of it; see Leg. Everything
here runs on the event loop, and nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from tandem.engine.base import Delta, Ending, Engine, Step
from tandem.errors import (
    DeadlineError,
    DrainingError,
    EngineError,
    HookError,
    QueueFullError,
    RequestError,
    TandemError,
)
from tandem.hooks.chain import Chain
from tandem.hooks.deferred import DeferredHooks, Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.intake import Intake, trace_id_of
from tandem.worker.leg import Closing, Group, Leg
from tandem.worker.link import RouterLink
from tandem.worker.output import End
from tandem.worker.phases import PhaseRules
from tandem.worker.tally import WorkerTally

log = logging.getLogger(__name__)
MAX_HELD_ROWS = 1000
"""Of decode's output that waits for prefill's verdict."""


Staged = tuple[Leg, Piece | None]
"""What is to be written of a leg, once all of its step was judged."""


class DuplicateLegError(Exception):
    """A router used a leg's number twice on one stream."""


class Legs:
    """The table of open legs. Each ends with exactly one LegClosed, unless its router has gone."""

    def __init__(
        self,
        *,
        phase: common_pb2.Phase.ValueType,
        worker: str,
        rules: PhaseRules,
        intake: Intake,
        engine: Engine,
        hooks: Chain | DeferredHooks | None,
        max_legs: int,
        tally: WorkerTally,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phase = phase
        self._worker = worker
        self._rules = rules
        self._intake = intake
        self._engine = engine
        self._inline = hooks if isinstance(hooks, Chain) else None
        self._deferred = None if isinstance(hooks, Chain) else hooks
        self._max_legs = max_legs
        self._tally = tally
        self._clock = clock
        self._open: dict[int, Leg] = {}
        self._groups: dict[Group, list[Leg]] = {}
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    def __len__(self) -> int:
        return len(self._open)

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
                now=self._clock(),
            )
            self._engine.submit(accepted.request)
        except TandemError as error:
            self._refuse(link, command, error)
            return
        self._open_hooks(leg, accepted.task)
        self._open[leg.request_id] = leg
        link.legs[leg.number] = leg
        self._groups.setdefault(leg.group, []).append(leg)
        self.idle.clear()

    def release(self, link: RouterLink, number: int) -> None:
        """Prefill's verdict lets a decode leg's output go. Unknown: it has ended meanwhile."""
        leg = link.legs.get(number)
        if leg is not None:
            leg.release()
            self._close_when_done(leg)

    def cancel(self, link: RouterLink, number: int, reason: str) -> None:
        """End a leg, whatever it waits for. Unknown: it has ended meanwhile."""
        leg = link.legs.get(number)
        if leg is not None:
            self._end(leg, Closing("cancelled", reason=reason))

    def drop(self, link: RouterLink) -> None:
        """The router's stream is gone: end all legs that came by it."""
        for leg in list(link.legs.values()):
            self._end(leg, Closing("cancelled", reason="router_lost"))

    # --- what the engine says --------------------------------------------------------------------

    def on_step(self, step: Step) -> None:
        """Judge every delta of the step, and only then write: what a sibling of a terminated
        sequence brought in the same step is withheld (S0-029). Where hooks judge elsewhere, hand it
        over instead; `on_rulings` goes on.
        """
        began = time.perf_counter()
        staged: list[Staged] = []
        work: list[Work] = []
        links: set[RouterLink] = set()
        tokens = 0
        for delta in step:
            leg = self._open.get(delta.request_id)
            if leg is None:
                continue
            tokens += len(delta.token_ids)
            links.add(leg.link)
            if delta.end is not None:
                leg.settled = True
            if leg.over:
                self._close_when_done(leg)
            elif not self._arrived(leg, delta):
                staged.append((leg, None))
            elif self._deferred is None:
                staged.append((leg, self._judge(leg, delta)))
            else:
                work.append(Work(leg.request_id, leg.output.cut(delta), leg.output.over))
        self._write(staged, links)
        self._tally.step(tokens, time.perf_counter() - began)
        if work and self._deferred is not None:
            self._deferred.submit(work)

    def on_rulings(self, rulings: Sequence[Ruling]) -> None:
        """What hooks that judge elsewhere made of earlier steps."""
        staged: list[Staged] = []
        for ruling in rulings:
            leg = self._open.get(ruling.request_id)
            if leg is not None and not leg.over:
                staged.append((leg, self._ruled(leg, ruling)))
        self._write(staged, {leg.link for leg, _ in staged})

    def _arrived(self, leg: Leg, delta: Delta) -> bool:
        """Whether the delta brought output; else the leg has ended with it."""
        if delta.kv is not None:
            leg.kv = delta.kv
            self._tally.kv(delta.kv)
        if delta.cached_tokens:
            leg.cached_tokens = delta.cached_tokens
        if delta.end is Ending.CANCELLED or delta.end is Ending.FAILED:
            leg.closing = _ended_by_engine(leg, delta)
            return False
        self._rules.arrived(leg, delta)
        return True

    def _judge(self, leg: Leg, delta: Delta) -> Piece | None:
        """What may be shown of a delta."""
        try:
            piece = leg.output.push(delta)
        except HookError as error:
            leg.closing = Closing("failed", error=error)
            return None
        if leg.output.end is not None:
            self._ended(leg, leg.output.end)
        return piece

    def _ruled(self, leg: Leg, ruling: Ruling) -> Piece | None:
        """What may be shown of a piece that was judged elsewhere."""
        output = leg.output
        output.hook_seconds += ruling.seconds
        if ruling.error is not None:
            leg.closing = Closing("failed", error=ruling.error)
            return None
        piece = output.ruled(ruling.piece, ruling.reason, ruling.final)
        if output.end is not None:
            self._ended(leg, output.end)
        return piece

    def _ended(self, leg: Leg, end: End) -> None:
        self._rules.ended(leg, end)
        if end.terminated and self._rules.shows:
            self._mute_siblings(leg)

    def _write(self, staged: Sequence[Staged], links: Iterable[RouterLink]) -> None:
        for leg, piece in staged:
            if not leg.muted:
                self._write_one(leg, piece)
        for link in links:
            link.notify()

    def _write_one(self, leg: Leg, piece: Piece | None) -> None:
        if piece is not None and self._rules.shows:
            leg.show(piece)
            if leg.held is not None and len(leg.held.sequences) > MAX_HELD_ROWS:
                error = HookError(f"prefill's verdict did not come within {MAX_HELD_ROWS} chunks")
                self._end(leg, Closing("failed", error=error))
                return
        if leg.closing is not None:
            self._end(leg, leg.closing)

    # --- time, and the end of everything ---------------------------------------------------------

    def sweep(self) -> None:
        """End what is past its deadline. Called once a second."""
        now = self._clock()
        overdue = [leg for leg in self._open.values() if leg.deadline <= now]
        for leg in overdue:
            self._end(leg, Closing("failed", error=DeadlineError("the request's time ran out")))

    def fail_all(self, error: TandemError, *, settled: bool = False) -> None:
        """End every open leg. `settled`: the engine is gone, and will not say so for each."""
        for leg in list(self._open.values()):
            leg.settled = leg.settled or settled
            self._end(leg, Closing("failed", error=error, retryable=not leg.started))

    # --- inside ----------------------------------------------------------------------------------

    def _open_hooks(self, leg: Leg, task: common_pb2.Task) -> None:
        if self._inline is None and self._deferred is None:
            return
        info = SequenceInfo(
            request_id=leg.request_id,
            group=leg.group,
            output_index=leg.output_index,
            streaming=task.streaming,
            trace_id=leg.trace_id,
        )
        if self._inline is not None:
            leg.output.hooks = self._inline.sequence(info)
        elif self._deferred is not None:
            self._deferred.open(info)

    def _abort_hooks(self, leg: Leg) -> None:
        leg.output.abort()
        if self._deferred is not None:
            self._deferred.abort(leg.request_id)

    def _end(self, leg: Leg, closing: Closing) -> None:
        """Nothing more is shown of the leg. What ended it first counts, but a failure from outside
        also ends what is held for the router's release.
        """
        if leg.over and leg.closing is not None and leg.held is None:
            self._close_when_done(leg)
            return
        if closing.error is not None and not closing.error.phase:
            closing.error.phase = self._phase
        leg.closing = closing
        if not leg.over or leg.muted:
            leg.over, leg.muted = True, False
            self._abort_hooks(leg)
        if closing.outcome in ("failed", "cancelled"):
            leg.held = None
        else:
            leg.report(phase=self._phase, worker=self._worker, now=self._clock())
            if self._phase == common_pb2.PHASE_DECODE:
                leg.finish()
        self._cancel_engine(leg)
        self._close_when_done(leg)

    def _mute_siblings(self, leg: Leg) -> None:
        """The other outputs of a terminated request show nothing more. The router, told of the
        terminate, ends their sequences and cancels their legs.
        """
        for sibling in self._groups.get(leg.group, ()):
            if sibling is not leg and not sibling.over:
                sibling.over = sibling.muted = True
                sibling.closing = sibling.held = None
                self._abort_hooks(sibling)
                self._cancel_engine(sibling)

    def _cancel_engine(self, leg: Leg) -> None:
        if not leg.settled and not leg.engine_cancelled:
            leg.engine_cancelled = True
            self._engine.cancel(leg.request_id)

    def _close_when_done(self, leg: Leg) -> None:
        if leg.closing is None or not leg.settled or leg.held is not None or not leg.over:
            return
        link = leg.link
        if link.legs.pop(leg.number, None) is None:
            return
        del self._open[leg.request_id]
        _forget(self._groups, leg)
        link.events.append(leg.closing.event(leg.number))
        link.notify()
        self._tally.closed(leg.closing.outcome)
        if leg.closing.error is not None:
            self._log_failure(leg, leg.closing.error)
        if not self._open:
            self.idle.set()

    def _refuse(self, link: RouterLink, command: worker_pb2.StartLeg, error: TandemError) -> None:
        if not error.phase:
            error.phase = self._phase
        retryable = not isinstance(error, RequestError)
        closing = Closing("failed", error=error, retryable=retryable)
        link.events.append(closing.event(command.leg))
        link.notify()
        self._tally.closed("failed")
        log.info(
            "leg refused",
            extra={
                "trace_id": trace_id_of(command.task),
                "leg": command.leg,
                "code": error.code,
                "peer": link.peer,
            },
        )

    def _log_failure(self, leg: Leg, error: TandemError) -> None:
        log.warning(
            "leg failed",
            extra={
                "trace_id": leg.trace_id,
                "request_id": leg.request_id,
                "leg": leg.number,
                "code": error.code,
                "reason": error.message + _where(error.__cause__),
                "seconds": round(self._clock() - leg.started_at, 3),
            },
        )


def _ended_by_engine(leg: Leg, delta: Delta) -> Closing:
    if delta.end is Ending.CANCELLED:
        return Closing("cancelled")
    error = delta.error or EngineError("the engine gave no reason")
    return Closing("failed", error=error, retryable=delta.retryable and not leg.started)


def _where(cause: BaseException | None) -> str:
    """Where user code raised. Its own words stay out of the log: they may quote the text."""
    if cause is None or not (frames := traceback.extract_tb(cause.__traceback__)):
        return ""
    return f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})"


def _forget(groups: dict[Group, list[Leg]], leg: Leg) -> None:
    members: Iterable[Leg] = groups.pop(leg.group, ())
    if rest := [member for member in members if member is not leg]:
        groups[leg.group] = rest
