"""The router's core: events in, actions out. No sockets, clocks, randomness or asyncio inside.

docs/design/0002-router-core-without-io.md says why, docs/router.md says the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from tandem.byte_budget import ByteBudget
from tandem.errors import (
    CancelledError,
    DeadlineError,
    DrainingError,
    QueueFullError,
    RouterLostError,
)
from tandem.message_limits import MAX_OUTPUTS
from tandem.v1 import router_pb2
from tandem_router.core import actions, admission, events, rejections, snapshot, stories
from tandem_router.core.actions import Action
from tandem_router.core.canaries import Canaries
from tandem_router.core.deaths import count_death
from tandem_router.core.events import Event
from tandem_router.core.fleet import Fleet
from tandem_router.core.legs import Legs, lost_leg
from tandem_router.core.lifecycle import Lifecycle
from tandem_router.core.lost_hits import TURNS
from tandem_router.core.outliers import News, Outliers
from tandem_router.core.prefixes import DEFAULT_BYTES
from tandem_router.core.sequences import MOST_TOLD, QUEUED, Leg, Request, RoutedStage, Sequence
from tandem_router.core.starts import Starts
from tandem_router.core.state import State
from tandem_router.core.story import Story
from tandem_router.core.values import (
    Bounds,
    Disaggregate,
    Edition,
    Phase,
    Profile,
    Standing,
)
from tandem_router.core.waiting import rank
from tandem_router.core.waits import Waits
from tandem_router.core.worker import Worker
from tandem_router.policies import PolicyFactory

_NUMBERS = 2**64
"""Sequence numbers are below it: the wire has 64 bits for them."""


class RouterCore:
    """Admission, pairing, and the lifecycle of every sequence.

    `new_room` gives non-zero random numbers of at most 63 bits.
    """

    def __init__(
        self,
        *,
        bounds: Bounds,
        prefill_policy: PolicyFactory,
        decode_policy: PolicyFactory,
        new_room: Callable[[], int],
        promptless: Callable[[bytes], bytes] = lambda task: b"",
        canary_task: Callable[[Profile], bytes] = lambda profile: b"",
        budget: ByteBudget | None = None,
        disaggregate: Disaggregate = "auto",
        prefix_bytes: int = DEFAULT_BYTES,
    ) -> None:
        """`promptless` leaves of a task what is kept when its prompt is let go. `canary_task` makes
        a canary's for workers of a profile. `budget`: what the process holds, tasks beside the
        rest; None: one of its own. `disaggregate`: where a pair and an aggregated worker are free.
        `prefix_bytes`: what is known of prefix caches takes no more.
        """
        fleet = Fleet(prefill_policy, decode_policy, disaggregate, prefix_bytes)
        self.state = State(bounds, fleet, budget or ByteBudget())
        legs = Legs(self.state, new_room)
        self._lifecycle = Lifecycle(self.state, legs, promptless)
        self._outliers = Outliers(self.state)
        self._canaries = Canaries(self.state, legs, self._lifecycle, canary_task)
        self._starts = Starts(self.state, legs, self._lifecycle)
        self._waits = Waits(self.state)
        self._arrivals = itertools.count()
        self._shared_tasks = itertools.count(1)
        self._served: tuple[router_pb2.ServedModel, ...] = ()
        self._forgets_at = inf
        """When an edition without a pair is no longer waited for."""
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.FrontendUp: self._frontend_up,
            events.FrontendDown: self._frontend_down,
            events.Submit: self._submit,
            events.Cancel: self._cancel,
            events.WorkerUp: self._worker_up,
            events.WorkerDown: self._worker_down,
            events.WorkerDraining: self._worker_draining,
            events.WorkerLoad: self._worker_load,
            events.WorkerFault: self._worker_fault,
            events.LegStarted: self._leg_started,
            events.LegVerdict: self._leg_verdict,
            events.LegMade: self._leg_made,
            events.LegParked: self._leg_parked,
            events.LegClosed: self._leg_closed,
            events.LegFailed: self._leg_failed,
            events.Tick: self._tick,
            events.Drain: self._drain,
            events.Abandon: self._abandon,
        }

    def handle(self, now: float, batch: Iterable[Event]) -> list[Action]:
        """Take in what happened at `now`, in order; returns what is to be done, in order.

        Whatever is due by `now` happens first, so a deadline holds at any event, not at ticks only.
        """
        state = self.state
        state.now, state.actions = now, []
        self._expire()
        for event in batch:
            self._handlers[type(event)](event)
            if state.may_start:
                self._start_waiting()
        return state.actions

    # --- what the shell may ask ------------------------------------------------------------------

    @property
    def wakes_at(self) -> float:
        """When time alone may have something to do next; what happens before may change that."""
        state = self.state
        if state.waiting:
            return self.state.now  # it may be refused at any time
        return min(
            state.deadlines.first,
            state.settling.first,
            self._canaries.wakes_at,
            self._outliers.wakes_at,
            self._forgets_at,
        )

    def snapshot(self) -> snapshot.Snapshot:
        """All that may be known of it now. Costs a pass over the workers."""
        return snapshot.take(self.state)

    @property
    def budget(self) -> ByteBudget:
        """The one of all bytes that the process holds."""
        return self.state.budget

    @property
    def bounds(self) -> Bounds:
        """The limits that it was made with."""
        return self.state.bounds

    @property
    def draining(self) -> bool:
        """Whether it admits nothing new any more."""
        return self.state.draining

    @property
    def idle(self) -> bool:
        """No sequence is open, no leg is left."""
        return not self.state.open_sequences and not self.state.legs

    def settled(self, worker: str) -> bool:
        """Nothing is open on the worker but legs that nobody waits for any longer."""
        found = self.state.fleet.workers.get(worker)
        return found is None or len(found.legs) == found.overdue

    def refusal(self, worker: str) -> str:
        """Why no pair uses a connected worker now, for people; empty: one does."""
        return self.state.fleet.refusal(self.state.fleet.workers[worker])

    def closed_until(self, worker: str) -> tuple[float, str]:
        """Until when no stream to a worker is to be opened, and why, for people; 0: one may be."""
        return self.state.fleet.closed_until(worker)

    def free_slots(self) -> dict[Edition, int]:
        """How many sequences of each edition could start now, less those that wait."""
        fleet, waiting = self.state.fleet, self.state.waiting
        return {each: fleet.free_pairs(each) - waiting.count_in(each) for each in fleet.editions}

    def kv_cache(self, edition: Edition) -> router_pb2.KvCache | None:
        """What the decode workers of an edition say of their KV caches; None: not each of them
        does.
        """
        return self.state.fleet.editions[edition].kv_cache()

    def stories(self, trace_id: str, now: float) -> list[Story]:
        """The stories of the open requests with that trace id, the latest first, as of `now`."""
        fleet, found = self.state.fleet, self.state.traces.last(trace_id)
        return [stories.of_request(each, fleet, now) for each in found]

    def refusals(self) -> dict[str, str]:
        """Each connected worker that no pair uses now, and why, for people. Costs a pass over all
        of them.
        """
        fleet = self.state.fleet
        models = {each.model for each in fleet.editions}
        first: dict[str, str] = {}
        for each in (found for name in models for found in rejections.of_model(fleet, name)):
            first.setdefault(each.worker, each.reason)
        return first

    def runs_elsewhere(self, worker: str, frontend: int, sequence: int) -> bool:
        """Whether a sequence is open, and its decode leg is not on that worker."""
        request = self.state.frontends.get(frontend, {}).get(sequence)
        if request is None:
            return False
        decode = request.sequences[sequence - request.submit.first_sequence].decode
        return decode is None or decode.worker.key != worker

    # --- frontends -------------------------------------------------------------------------------

    def _frontend_up(self, event: events.FrontendUp) -> None:
        self.state.frontends[event.frontend] = {}

    def _frontend_down(self, event: events.FrontendDown) -> None:
        requests = self.state.frontends.pop(event.frontend, {})
        for request in requests.values():
            self._lifecycle.end_request(request, error=CancelledError("the frontend went away"))

    def _submit(self, event: events.Submit) -> None:
        requests, submit = self.state.frontends.get(event.frontend), event.message
        if requests is None:
            return
        n = submit.n
        numbers = range(submit.first_sequence, submit.first_sequence + n)
        fits = 1 <= n <= MAX_OUTPUTS and numbers.stop <= _NUMBERS
        if not (fits and requests.keys().isdisjoint(numbers)):
            self._refuse_frontend(event)
            return
        now = self.state.now
        allotment = self.state.budget.allotment()
        edition = admission.edition(self.state, event)
        deadline = now + submit.timeout_ms / 1000
        shared = next(self._shared_tasks) if n > 1 else 0
        request = Request(event, edition, now, deadline, n, allotment, number=shared)
        for index, number in enumerate(numbers):
            place = rank(submit, now, next(self._arrivals))
            sequence = Sequence(request, number, index, place, now)
            sequence.moments = [QUEUED] if index < MOST_TOLD or event.first_span else None
            request.sequences.append(sequence)
        if error := admission.refusal(self.state, request, event.fault):
            self._lifecycle.refuse(request, error)
            return
        requests.update(dict.fromkeys(numbers, request))
        self.state.traces.add(request)
        self.state.open_sequences += n
        self.state.deadlines.set(request, request.deadline)
        if submit.session and event.voucher is None:
            self._note_lost_hits(event)
        for sequence in request.sequences:
            self._lifecycle.enqueue(sequence)

    def _note_lost_hits(self, event: events.Submit) -> None:
        """Where no worker has a cache, no hit is missed."""
        prefixes, blocks = self.state.fleet.prefixes, event.prompt_blocks
        held = prefixes.depth(blocks) if prefixes.count else len(blocks)
        lost = self.state.lost_hits.note(event.message, blocks, held)
        if lost is not None:
            self.state.counts.lost_hit_tokens += lost.tokens
            if lost.turns == TURNS:
                self.state.actions.append(actions.HitsLost(lost))

    def _refuse_frontend(self, event: events.Submit) -> None:
        self._frontend_down(events.FrontendDown(event.frontend))
        said = event.message
        reason = f"sequences {said.first_sequence} + {said.n} cannot be: in use, none or many"
        self.state.actions.append(actions.RefuseFrontend(event.frontend, reason))

    def _cancel(self, event: events.Cancel) -> None:
        request = self.state.frontends.get(event.frontend, {}).get(event.first_sequence)
        if request is not None and request.submit.first_sequence == event.first_sequence:
            self._lifecycle.end_request(request, error=CancelledError("the client cancelled"))

    # --- workers ---------------------------------------------------------------------------------

    def _worker_up(self, event: events.WorkerUp) -> None:
        self._worker_down(events.WorkerDown(event.worker, "it connected anew"))
        worker = Worker(event.worker, event.listed_as, event.profile, event.profile.draining)
        worker.report(event.other_legs, None, 0, 0)
        fleet, bounds = self.state.fleet, self.state.bounds
        worker.trust = fleet.trust(event.worker)
        worker.trust.connected(proved=event.profile.moved_kv or not bounds.canary_seconds)
        worker.trust.silent(event.step_age, stalls_after=bounds.stall_seconds)
        fleet.workers[event.worker] = worker
        for name, (reason, pairs) in rejections.by_reason(fleet, worker).items():
            self.state.counts.pairs_rejected[name] += pairs
            self.state.actions.append(actions.PairRejected(worker.key, reason, pairs))
        self.state.actions += self._outliers.consider(self.state.now, worker)
        self._fleet_changed(worker)

    def _worker_down(self, event: events.WorkerDown) -> None:
        worker = self.state.fleet.workers.pop(event.worker, None)
        if worker is None:
            return
        self.state.actions += self._outliers.lost(self.state.now, worker, event)
        worker.trust = worker.trust.disconnected()
        condemned: list[Request] = []
        if event.died:  # while it knows its twin
            condemned = count_death(self.state, worker, event.reason, event.unsent, told=False)
        self._fleet_changed(worker)  # first, so that retries look at what is left
        for leg in [self.state.legs[number] for number in sorted(worker.legs)]:
            self._lifecycle.close(leg, lost_leg(leg, event))
        for request in condemned:
            self._lifecycle.condemn(request)

    def _worker_draining(self, event: events.WorkerDraining) -> None:
        worker = self.state.fleet.workers.get(event.worker)
        if worker is not None and worker.draining != event.draining:
            worker.draining = event.draining
            self._fleet_changed(worker)

    def _worker_load(self, event: events.WorkerLoad) -> None:
        worker = self.state.fleet.workers.get(event.worker)
        if worker is not None:
            load = event.load
            prompts = load.prompt_tokens if load.HasField("prompt_tokens") else None
            worker.report(load.open_legs, prompts, load.kv_tokens_used, load.kv_tokens_total)
            if load.HasField("cache") and worker.phase is Phase.PREFILL:
                self.state.fleet.prefixes.report(worker, load.cache, self.state.now)
            proving = worker.trust.standing is Standing.PROVING
            if self.state.fleet.place(worker) or proving:
                self.state.may_start = True
            if load.moved_kv and proving:
                self._take_proved(self._canaries.prove(worker))
            self._take_step_age(worker, events.step_age(load))

    def _take_step_age(self, worker: Worker, age: float | None) -> None:
        """A worker whose engine stands gets nothing new, and at last what it has is lost: then
        nothing of it can be shown any longer, and it may run elsewhere.
        """
        bounds, trust = self.state.bounds, worker.trust
        if trust.silent(age, stalls_after=bounds.stall_seconds):
            self.state.actions += [actions.WorkerStalled(worker.key, trust.stalled, age or 0.0)]
            self._fleet_changed(worker)
        if age is not None and worker.legs and trust.gives_up(age, bounds.stall_failover_seconds):
            reason = f"its engine has work and has made no step for {age:.0f} s"
            self.state.actions.append(actions.GiveUpWorker(worker.key, reason))

    def _worker_fault(self, event: events.WorkerFault) -> None:
        self._take_news(self._outliers.unreadable(self.state.now, event.worker))

    def _take_news(self, news: News) -> None:
        if news:
            self.state.actions += news
            workers, keys = self.state.fleet.workers, dict.fromkeys(each.worker for each in news)
            self._fleet_changed(*[workers[each] for each in keys if each in workers])

    def _fleet_changed(self, *workers: Worker) -> None:
        """`workers` take work where they did not, or the reverse."""
        state, newly_paired = self.state, []
        state.unfit_workers.clear()
        for worker in workers:
            forgiven, paired = state.fleet.update(worker, state.now)
            for each in forgiven:
                reason = "no other worker of its group is left"
                state.actions.append(actions.WorkerReturned(each.key, reason))
            newly_paired += [actions.WorkerPaired(each.key) for each in paired]
            self._canaries.update(worker)
        state.may_start = True
        self._tell_served()
        state.actions += newly_paired

    def _tell_served(self) -> None:
        """Requests of an edition that is forgotten are refused from now on."""
        fleet, bounds = self.state.fleet, self.state.bounds
        memory, expected = bounds.pair_memory_seconds, bounds.expected_models
        self._forgets_at = fleet.forget(self.state.now, memory, expected)
        served = fleet.served()
        if served != self._served:
            self._served = served
            self.state.actions.append(actions.FleetChanged(served))

    # --- legs ------------------------------------------------------------------------------------

    def _leg_of(self, worker: str, number: int) -> Leg | None:
        """Late events of legs that are closed, or not of this worker, are nothing to act on."""
        leg = self.state.legs.get(number)
        return leg if leg is not None and leg.worker.key == worker else None

    def _leg_started(self, event: events.LegStarted) -> None:
        if leg := self._leg_of(event.worker, event.leg):
            self._lifecycle.started(leg)

    def _leg_verdict(self, event: events.LegVerdict) -> None:
        if leg := self._leg_of(event.worker, event.leg):
            code = "terminate" if event.terminate else ""
            leg.sequence.note(self.state.now, "verdict", leg.phase, code)
            self._lifecycle.judge(leg, event)

    def _leg_made(self, event: events.LegMade) -> None:
        if leg := self._leg_of(event.worker, event.leg):
            self._lifecycle.made(leg, event)

    def _leg_parked(self, event: events.LegParked) -> None:
        if leg := self._leg_of(event.worker, event.leg):
            self._lifecycle.parked(leg, event)

    def _leg_closed(self, event: events.LegClosed) -> None:
        if leg := self._leg_of(event.worker, event.leg):
            condemned: list[Request] = []
            if event.worker_died:
                condemned = count_death(self.state, leg.worker, "its engine died", told=True)
                self._worker_draining(events.WorkerDraining(event.worker, True))
            self._take_news(self._outliers.leg_ended(self.state.now, leg, event))
            if event.error is not None:
                self._canaries.suspect(leg, event.error)
            self._lifecycle.close(leg, event)
            for request in condemned:
                self._lifecycle.condemn(request)
            if isinstance(event.error, QueueFullError):
                leg.worker.fill()
                self.state.fleet.place(leg.worker)
            elif isinstance(event.error, DrainingError):
                self._worker_draining(events.WorkerDraining(event.worker, True))

    def _leg_failed(self, event: events.LegFailed) -> None:
        leg = self._leg_of(event.worker, event.leg)
        if leg is not None and leg.sequence.stage is not RoutedStage.ENDED:
            self._lifecycle.end(leg.sequence, error=event.error)

    # --- time ------------------------------------------------------------------------------------

    def _tick(self, _: events.Tick) -> None:
        self._canaries.expire()
        self._starts.end_overdue()
        self._waits.tell()

    def _expire(self) -> None:
        if self.state.now >= self._forgets_at:
            self._tell_served()
        if returning := self._outliers.expire(self.state.now):
            self._fleet_changed(*returning)
        for request in self.state.deadlines.due(self.state.now):
            seconds = request.submit.timeout_ms / 1000
            stage = min((each.stage for each in request.sequences), key=_PROGRESS.__getitem__)
            error = DeadlineError(f"{seconds:g} seconds were over while it was {stage.value}")
            self._lifecycle.end_request(request, error=error)
        for leg in self.state.settling.due(self.state.now):
            self._lifecycle.settle_overdue(leg)
            trace_id = leg.sequence.request.submit.trace_id
            overdue = actions.SettleOverdue(leg.worker.key, leg.number, trace_id)
            self.state.actions.append(overdue)

    def _start_waiting(self) -> None:
        """Start the heads of all queues as long as there are slots for them, after canaries."""
        if self._canaries.waiting:
            if proved := self._canaries.take_ended():
                self._take_proved(proved)
            self._canaries.start()
        self.state.may_start = False
        queued, self.state.queued = self.state.queued, []
        self._starts.start()
        if queued:
            stories.note_queue_causes(self.state, queued)
            self._waits.note_queued(queued)

    def _take_proved(self, proved: list[Worker]) -> None:
        for worker in proved:
            self.state.actions += self._outliers.consider(self.state.now, worker)
        self._fleet_changed(*proved)

    # --- shutting down ---------------------------------------------------------------------------

    def _drain(self, _: events.Drain | events.Abandon) -> None:
        self.state.draining = True
        self._canaries.stop()

    def _abandon(self, event: events.Abandon) -> None:
        self._drain(event)
        refused = DrainingError("the router is shutting down")
        lost = RouterLostError("the router shut down before the request had finished")
        for requests in list(self.state.frontends.values()):
            for request in list(requests.values()):
                self._lifecycle.end_request(request, error=lost if request.started else refused)


_PROGRESS = {stage: number for number, stage in enumerate(RoutedStage)}
