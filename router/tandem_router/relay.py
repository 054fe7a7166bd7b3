"""Joins the core to the streams: gives it events with the time, carries out its actions, and passes
workers' payloads on to frontends as bytes.

The path of a frame does no work for each token or sequence: an envelope's payload is appended to
its frontend's draft, and only events reach the core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from tandem import ids
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.endings import Outcome
from tandem.errors import InternalError, InvalidRequestError, WorkerError
from tandem.prefix_blocks import session_text
from tandem.story_book import StoryBook, log_line
from tandem.tracing.spans import Tracer
from tandem.v1 import worker_pb2
from tandem.wire.prompt_chunks import ChunkRoom
from tandem_router import inspection, spans, suspects, translate
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.story import Story, shortened
from tandem_router.core.values import Edition, Phase, Profile
from tandem_router.inspection import Inspection
from tandem_router.links import HEARTBEAT_SECONDS, Sink, WorkerLink
from tandem_router.translate import ANY_MODEL
from tandem_router.vouchers import Vouchers

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
"""How late a deadline may be noticed."""
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""A worker's for one frontend, in one frame; what is more would not fit into a message with others.
"""
_MAX_DESTINATION = 2**32 - 1


class Relay:
    """Single-threaded: every method is called in the event loop."""

    def __init__(
        self,
        core: RouterCore,
        *,
        tracer: Tracer | None = None,
        vouchers: Vouchers | None = None,
        book: StoryBook[Story] | None = None,
        log_requests: bool = False,
        chunk_room: ChunkRoom | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.chunk_room = chunk_room or ChunkRoom(0)
        """For what prompts of the frontends' streams begin with; none: prompts come whole."""
        self.tracer = tracer
        """Where the spans of traced sequences go; None: the router makes none."""
        self.vouchers = vouchers
        """Signs what context-only requests leave; None: they are refused."""
        self.book = book
        """Keeps the stories of requests that have ended; None: nobody can ask for them."""
        self._ends_at = logging.INFO if log_requests else logging.DEBUG
        """The level of the line that tells a request's story."""
        self.fleet = translate.fleet((), core.bounds)
        self.fleet_changed = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while the router drains and nothing is open any longer."""
        self.early = 0
        """Sequences of Generate calls that wait for their model's first pair."""
        self.relayed_bytes = 0
        self.relayed_frames = 0
        self.complaints = Complaints(log)
        """Lines that any client can cause."""
        self._clock = clock
        self._ticked = clock()
        self._wakes_at = inf
        """When `keep_time` looks at the time next, unless it is to do so `_sooner`."""
        self._sooner = asyncio.Event()
        self._frontends: dict[int, Sink] = {}
        self._workers: dict[str, WorkerLink] = {}
        self._numbered: dict[int, WorkerLink] = {}
        self._new_worker = ids.counter()
        self._last_frontend = 0
        self.lists_workers = False
        """Discovery lists some."""
        self._carry_out = self._ways()

    def _ways(self) -> dict[type[Any], Callable[[Any], None]]:
        """How each action of the core is carried out."""
        return {
            **dict.fromkeys(actions.Logged.__subclasses__(), _log),
            actions.WorkerDied: suspects.log_death,
            actions.WorkerStalled: _log_stalled,
            actions.StartLeg: self._start_leg,
            actions.ReleaseLeg: lambda action: self._workers[action.worker].release(action),
            actions.CancelLeg: lambda action: self._workers[action.worker].cancel(action),
            actions.EndSequence: self._end_sequence,
            actions.GiveVoucher: self._give_voucher,
            actions.QueueWait: lambda wait: self._frontends[wait.frontend].add_queue_wait(wait),
            actions.TellWait: lambda wait: self._frontends[wait.frontend].add_waiting(wait),
            actions.RequestEnded: self._request_ended,
            actions.SequenceTraced: self._trace,
            actions.GiveUpWorker: self._give_up_worker,
            actions.HitsLost: self._warn_of_lost_hits,
            actions.RefuseFrontend: self._refuse_frontend,
            actions.FleetChanged: self._set_fleet,
            actions.WorkerPaired: lambda action: self._workers[action.worker].pair(),
        }

    @property
    def budget(self) -> ByteBudget:
        """The one of all bytes that the router holds."""
        return self.core.budget

    @property
    def ready(self) -> bool:
        """A request for some model would find a pair now."""
        pairs = any(model.ready_pairs for model in self.fleet.models)
        return pairs and not self.core.draining

    def awaits_pair(self, model: str) -> bool:
        """Whether a request for a model would be refused for want of a pair that may still come."""
        if self.core.draining or self._has_paired(model):
            return False
        coming = self._coming()
        return model in self.fleet.expected or model in coming or ANY_MODEL in coming

    def _coming(self) -> list[str]:
        """Models that have had no pair, and of which workers may be listed."""
        if not self.lists_workers:
            return []
        if not self.fleet.models:
            return [ANY_MODEL]
        names = {each.name for each in self.fleet.models}
        return sorted(each for each in names if not self._has_paired(each))

    def _has_paired(self, model: str) -> bool:
        """Whether it has had a pair. Then the core says whether requests wait for the next."""
        return any(each.limits.context_length for each in self.fleet.models if each.name == model)

    def handle(self, *batch: events.Event) -> None:
        """What cannot be carried out costs its own sequence, and none of the actions after it."""
        failed: list[events.Event] = []
        for action in self.core.handle(self._clock(), batch):
            try:
                self._carry_out[type(action)](action)
            except Exception:
                log.exception(
                    "the router could not carry out an action",
                    extra={"reason": type(action).__name__},
                )
                failed += _failed(action)
        if failed:
            self.handle(*failed)
        if self.core.draining and self.core.idle:
            self.idle.set()
        if self._next_tick < self._wakes_at:
            self._sooner.set()

    async def keep_time(self) -> None:
        """Tell the core of the time when that has something to do, for ever, and frontends that
        this loop runs.
        """
        heartbeat_at = self._clock() + HEARTBEAT_SECONDS
        while True:
            now = self._clock()
            if now >= heartbeat_at:
                self._tell_fleet()
                heartbeat_at = now + HEARTBEAT_SECONDS
            self._wakes_at = min(heartbeat_at, self._next_tick)
            self._sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wakes_at - now):
                    await self._sooner.wait()
            if self._clock() >= self._wakes_at:
                self._ticked = self._clock()
                self.handle(events.Tick())

    @property
    def _next_tick(self) -> float:
        return max(self.core.wakes_at, self._ticked + TICK_SECONDS)

    # --- frontends -------------------------------------------------------------------------------

    def frontend_up(self, sink: Sink) -> int:
        """The number of the frontend, which workers know as a destination."""
        number = self._last_frontend % _MAX_DESTINATION + 1
        while number in self._frontends:
            number = number % _MAX_DESTINATION + 1
        self._last_frontend = number
        self._frontends[number] = sink
        self.handle(events.FrontendUp(number))
        self._note_changes()
        sink.set_fleet(self.fleet)
        if self.core.draining:
            sink.set_draining()
        return number

    def frontend_down(self, number: int) -> None:
        """Cancel every request that came by the frontend's stream."""
        self.handle(events.FrontendDown(number))
        if sink := self._frontends.pop(number, None):
            sink.gone()

    def drain(self) -> None:
        """Admit nothing more. Every frontend is told before it can see the first refusal."""
        for sink in self._frontends.values():
            sink.set_draining()
        self.handle(events.Drain())
        self.fleet_changed.set()

    def close_frontends(self) -> None:
        """Let every frontend have what is there for it, and end its stream."""
        for sink in self._frontends.values():
            sink.close()

    def open_stories(self, trace_id: str) -> list[Story]:
        """The stories of the open requests with that trace id, the latest first."""
        return self.core.stories(trace_id, self._clock())

    # --- workers ---------------------------------------------------------------------------------

    def worker_up(
        self,
        address: str,
        link: WorkerLink,
        *,
        listed_as: Phase,
        profile: Profile,
        other_legs: int = 0,
        step_age: float | None = None,
    ) -> None:
        link.address, link.number = address, self._new_worker()
        link.shows = profile.phase is Phase.DECODE
        self._workers[address] = self._numbered[link.number] = link
        up = events.WorkerUp(
            worker=address,
            listed_as=listed_as,
            profile=profile,
            other_legs=other_legs,
            step_age=step_age,
        )
        self.handle(up)

    def worker_down(self, address: str, reason: str, *, died: bool) -> None:
        """`died`: whether the worker may have: not, where somebody gave the stream up."""
        unsent = self._workers[address].unsent()
        self.handle(events.WorkerDown(address, reason, died, unsent))
        del self._numbered[self._workers.pop(address).number]

    def frame(self, address: str, frame: worker_pb2.WorkerFrame) -> None:
        """What a worker's sequences did in one step: payloads first, events after them."""
        self.relayed_frames += 1
        link = self._workers[address]
        for envelope in frame.envelopes[:]:  # as tandem/upstream/output.py has it
            sink = self._frontends.get(envelope.destination)
            if sink is not None:
                payload = envelope.payload
                self.relayed_bytes += len(payload)
                if len(payload) > MAX_PAYLOAD_BYTES:
                    fault = "a payload too large for any frontend"
                    sink.add_lost(link.number)
                else:
                    fault = sink.add_payload(link.number, payload)
                    if link.inspection is not None:
                        fault = fault or self._inspect(address, link, envelope)
                if fault:
                    self.fault(address, link.complaints, fault)
        if frame.events:
            self.handle(*translate.leg_events(address, frame.events))

    def fault(self, address: str, complaints: Complaints, fault: str) -> None:
        """A worker sent what no worker can send."""
        _complain(complaints, "a worker sends output that cannot be right", address, fault)
        self.handle(events.WorkerFault(address))

    def closed_for(self, address: str) -> tuple[float, str]:
        """For how many seconds no stream to a worker is to be opened, and why, for people; 0: one
        may be.
        """
        until, reason = self.core.closed_until(address)
        return max(0.0, until - self._clock()), reason

    def complaint(self, worker: int, fault: str) -> None:
        """A frontend could not read output of a worker: look for ourselves, for a time."""
        link = self._numbered.get(worker)
        if link is None:
            return
        message = "a frontend cannot read a worker's output: the router checks that output"
        _complain(link.complaints, message, link.address, fault)
        until = self._clock() + inspection.SECONDS
        if link.inspection is None:
            link.inspection = Inspection(until)
        link.inspection.until = until

    def _inspect(self, address: str, link: WorkerLink, envelope: worker_pb2.Envelope) -> str:
        """What is wrong with a payload; empty: nothing, or it is believed again."""
        assert link.inspection is not None
        if self._clock() > link.inspection.until:
            link.inspection = None
            return ""
        frontend = envelope.destination

        def elsewhere(sequence: int) -> bool:
            return self.core.runs_elsewhere(address, frontend, sequence)

        return link.inspection.fault(frontend, envelope.payload, elsewhere)

    # --- actions ---------------------------------------------------------------------------------

    def _start_leg(self, action: actions.StartLeg) -> None:
        link = self._workers[action.worker]
        command = action.command
        if link.shows and not command.canary:
            self._frontends[command.destination].add_run(command.sequence, link.number)
        link.start(action)

    def _give_up_worker(self, action: actions.GiveUpWorker) -> None:
        self._workers[action.worker].given_up = action

    def _end_sequence(self, action: actions.EndSequence) -> None:
        self._tell_end(action, lambda sink: sink.add_end(action))

    def _give_voucher(self, action: actions.GiveVoucher) -> None:
        self._tell_end(action, lambda sink: sink.add_voucher(action, self._signed(action)))

    def _tell_end(
        self, action: actions.EndSequence | actions.GiveVoucher, tell: Callable[[Sink], None]
    ) -> None:
        """A frontend that is not told would wait until its deadline: it is told of an error, where
        what it is to be told cannot be said.
        """
        sink = self._frontends[action.frontend]
        try:
            tell(sink)
        except Exception:
            log.exception("the end of a request cannot be written")
            error = InternalError("the router could not say how this sequence ended")
            sink.add_end(actions.EndSequence(action.frontend, action.sequence, error))

    def _signed(self, action: actions.GiveVoucher) -> bytes:
        assert self.vouchers is not None
        left = max(0.0, action.expires_at - self._clock())
        return self.vouchers.signed(action.voucher, lease_seconds=left)

    def _request_ended(self, action: actions.RequestEnded) -> None:
        for address in action.workers:
            if link := self._workers.get(address):
                link.forget(action.request)
        if self.book is not None:
            self.book.add(action.story, refused=action.refused)
        if log.isEnabledFor(self._ends_at):
            self._log_end(action.story)

    def _log_end(self, story: Story) -> None:
        log.log(self._ends_at, "request ended", extra=log_line(shortened(story)))

    def _trace(self, action: actions.SequenceTraced) -> None:
        if self.tracer is not None:
            self.tracer.record(spans.of_sequence(action))
            self.tracer.record(spans.of_admission(action))

    def _refuse_frontend(self, action: actions.RefuseFrontend) -> None:
        log.warning("frontend refused", extra={"reason": action.reason})
        self._frontends[action.frontend].fail(InvalidRequestError(action.reason))

    def _warn_of_lost_hits(self, action: actions.HitsLost) -> None:
        lost = action.lost
        self.complaints.warn(
            "a session's prompts differ at the same early place each time; caches hold nothing"
            " behind that place",
            "lost_hits",
            session=session_text(lost.session),
            model=lost.model,
            trace_id=lost.trace_id,
            reason=f"{lost.turns + 1} prompts in a row are alike up to token {lost.token}; for the"
            f" last one {lost.tokens} tokens were computed again",
        )

    def _set_fleet(self, action: actions.FleetChanged) -> None:
        self.fleet = translate.fleet(action.models, self.core.bounds)
        self._tell_fleet()
        self.fleet_changed.set()

    def _tell_fleet(self) -> None:
        self._note_changes()
        for sink in self._frontends.values():
            sink.set_fleet(self.fleet)

    def _note_changes(self) -> None:
        """Say how much each edition could take now, and holds, and what may come."""
        self.fleet.coming[:] = self._coming()
        free = self.core.free_slots()
        for model in self.fleet.models:
            edition = Edition(model.name, model.tokenizer_sha256)
            model.free_slots = free[edition]
            if (cache := self.core.kv_cache(edition)) is None:
                model.ClearField("kv_cache")
            else:
                model.kv_cache.CopyFrom(cache)


def _log(action: actions.Logged) -> None:
    level = logging.ERROR if action.is_error else logging.WARNING
    log.log(level, action.line, extra=msgspec.to_builtins(action))


def _log_stalled(action: actions.WorkerStalled) -> None:
    said = "a worker's engine has work and makes no step: it gets nothing new"
    if not action.stalled:
        said = "a worker's engine makes steps again"
    log.warning(said, extra={"address": action.worker, "seconds": action.step_age})


def _failed(action: actions.Action) -> list[events.Event]:
    """For the core, which would wait for a leg that no worker knows of, or that waits for ever to
    be released. A leg that is not cancelled ends at the deadline that its worker was told.
    """
    match action:
        case actions.StartLeg():
            error = InternalError("the router could not start a leg")
            return [events.LegClosed(action.worker, action.leg, Outcome.FAILED, error=error)]
        case actions.ReleaseLeg():
            error = InternalError("the router could not release a leg")
            return [events.LegFailed(action.worker, action.leg, error)]
    return []


def _complain(complaints: Complaints, message: str, address: str, fault: str) -> None:
    complaints.warn(message, WorkerError.code, address=address, reason=fault)
