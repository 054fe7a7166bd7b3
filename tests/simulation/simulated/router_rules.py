"""A router's conduct, judged from outside: from the events that went into its core and the actions
that came out, one event at a time. A fault in the core's state cannot hide itself from these books.

After each event: what must end has ended, as it must, and nothing else has; a cancel acts at once;
held output is released when it is judged; starts go by priority, then by what their keys were
given, then by arrival, to a pair that may have them; and nothing that could start is left waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tandem_router.core.worker
from simulated.canary_rules import CanaryRules
from simulated.health_books import usual
from simulated.router_books import (
    NOTHING,
    Books,
    Key,
    LegBook,
    MadeBook,
    PairBook,
    RequestBook,
    SequenceBook,
    WorkerBook,
    make_of,
)
from simulated.router_shares import Shares
from tandem.byte_budget import DEFAULT_BYTES
from tandem.endings import Outcome
from tandem.errors import (
    CancelledError,
    ContextLengthError,
    DeadlineError,
    DrainingError,
    HookError,
    InternalError,
    InvalidRequestError,
    NoPairError,
    ParkingFullError,
    QueueFullError,
    RequestError,
    RouterLostError,
    TandemError,
    TooLargeError,
    UnknownModelError,
    UnsupportedError,
    VoucherError,
    WorkerError,
    WorkerLostError,
)
from tandem.message_limits import MAX_OUTPUTS, MAX_TASK_BYTES
from tandem.v1 import common_pb2
from tandem_router.core import actions, events
from tandem_router.core.actions import Action
from tandem_router.core.events import Event
from tandem_router.core.sequences import MOST_MOMENTS
from tandem_router.core.story import Story
from tandem_router.core.values import Bounds, Phase
from tandem_router.core.worker import Worker
from tandem_router.policies.prefix import OVERLAP_WEIGHT

_END = "hook"
"""Instead of an error's code: a hook ended it."""


_OF_THE_FLEET = (events.WorkerUp, events.WorkerDown, events.WorkerDraining, events.LegClosed)
"""Events after which other pairs may be there."""


class RouterRules:
    """Call `observe` for each event that a core handled, with what it did about it; first with None
    for what was due by then.
    """

    def __init__(
        self,
        bounds: Bounds,
        fault: Callable[[str, str], None],
        begun: dict[tuple[str, int], float] | None = None,
        *,
        memory: int = DEFAULT_BYTES,
    ) -> None:
        """`begun`: where prompts are noted that this router has started, by trace id and first
        sequence. `memory`: the limit of its budget.
        """
        self._memory = memory
        self.releases = False
        """Prefill is chosen by `prefix`."""
        self.forgets = False
        """It may know less of caches than it was told."""
        self._begun = {} if begun is None else begun
        self.bounds = bounds
        self.books = Books(bounds)
        self.shares = Shares(self.books.waiting)
        self.canaries = CanaryRules(self.books, bounds, lambda text: self.fault(text))
        self.now = 0.0
        self._fault = fault
        self._due: dict[Key, tuple[str, str, int]] = {}
        """Sequences that must end now: an error's code or _END, the stop reason, the tokens that
        count.
        """
        self._refused: dict[Key, str] = {}
        self._unbegun: set[Key] = set()
        """Sequences that must end now and may run elsewhere: nothing of their request has begun."""
        self._refused_frontend: int | None = None
        """The frontend that must be told that it broke the protocol."""
        self._rejected: dict[tuple[str, str], int] = {}
        """Pairs that are refused of a worker that came up, by the field that differs, or "it"."""
        self._refused_request: tuple[str, str] | None = None
        """The trace id of a request that is not admitted, and with which code."""
        self._worker_died: tuple[str, list[str]] | None = None
        """The worker that is to be said to have died, and of whose requests it may have."""
        self._vouchers: dict[Key, common_pb2.Voucher] = {}
        """What frontends must be given of sequences that have ended."""
        self._release: set[int] = set()
        self._overdue: set[int] = set()
        self._closed_requests: list[RequestBook] = []
        self._served: dict[str, int] = {}
        self._last_leg = 0
        self._frontends_seen: set[int] = set()
        self._take: dict[type[Any], Callable[[Any], None]] = {
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
            events.LegParked: self._leg_parked,
            events.LegMade: self._leg_made,
            events.LegClosed: self._leg_closed,
            events.Tick: self._tick,
            events.Drain: self._drain,
            events.Abandon: self._abandon,
        }
        self._judge: dict[type[Any], Callable[[Any], None]] = {
            actions.EndSequence: self._judge_end_sequence,
            actions.GiveVoucher: self._judge_give_voucher,
            actions.StartLeg: self._judge_start_leg,
            actions.ReleaseLeg: self._judge_release_leg,
            actions.CancelLeg: self._judge_cancel_leg,
            actions.RequestEnded: self._judge_request_ended,
            actions.RefuseFrontend: self._judge_refuse_frontend,
            actions.PairRejected: self._judge_pair_rejected,
            actions.WorkerDied: self._judge_worker_died,
            actions.GiveUpWorker: lambda action: self._judge_news(
                action.worker, "given up for its output" if action.died else "given up"
            ),
            actions.WorkerStalled: lambda action: self._judge_news(
                action.worker, f"stalled: {action.stalled}"
            ),
            actions.CanaryFailed: self.canaries.judge_failed,
            actions.CanaryHangs: self.canaries.judge_hanging,
            actions.WorkerEjected: lambda action: self._judge_news(action.worker, "ejected"),
            actions.WorkerReturned: lambda action: self._judge_news(action.worker, "returned"),
            actions.FleetChanged: self._judge_fleet_changed,
            actions.WorkerPaired: self._judge_worker_paired,
            actions.SettleOverdue: self._judge_settle_overdue,
        }

    def observe(self, now: float, event: Event | None, done: Sequence[Action]) -> None:
        self.now = self.canaries.now = now
        if event is None:
            self.books.health.at(now)
            self.books.note_fleet(now, self.bounds.pair_memory_seconds)
            self._expire()
            if not done and not self._due and not self._overdue:
                return
        else:
            self._take[type(event)](event)
        for action in done:
            judge = self._judge.get(type(action))
            if judge is not None:
                judge(action)
        self._settle(event)

    def compare_loads(self, workers: Mapping[str, Worker]) -> None:
        """What policies are told of workers that they may choose."""
        loads = {
            key: each.load
            for key, each in self.books.workers.items()
            if each.takes and workers[key].index is not None
        }
        told = {key: workers[key].cost for key in loads}
        if told != loads:
            self.fault(f"loads are {told}, and should be {loads}")

    def fault(self, text: str, excuse: str = "") -> None:
        self._fault(f"router rules: {text}", excuse)

    # --- what happened ---------------------------------------------------------------------------

    def _expire(self) -> None:
        for request in list(self.books.requests.values()):
            if request.deadline <= self.now:
                self._end_request(request, DeadlineError.code)
        self.canaries.expire()
        for leg in self.books.legs.values():
            settled_by = self._settle_by(leg)
            if settled_by is not None and settled_by <= self.now and not leg.overdue:
                leg.overdue = True
                self._overdue.add(leg.number)
                if leg.sequence.stage == "retrying" and leg.sequence.key not in self._due:
                    self._end_failed(leg.sequence)

    def _settle_by(self, leg: LegBook) -> float | None:
        return None if leg.cancelled_at is None else leg.cancelled_at + self.bounds.settle_seconds

    def _frontend_up(self, event: events.FrontendUp) -> None:
        if event.frontend in self._frontends_seen:
            self.fault(f"the number {event.frontend} is given to a second frontend")
        self._frontends_seen.add(event.frontend)
        self.books.frontends.add(event.frontend)

    def _frontend_down(self, event: events.FrontendDown) -> None:
        self.books.frontends.discard(event.frontend)
        for request in list(self.books.requests.values()):
            if request.frontend == event.frontend:
                for sequence in request.open:
                    self._ended(sequence)

    def _submit(self, asked: events.Submit) -> None:
        frontend, submit = asked.frontend, asked.message
        if frontend not in self.books.frontends:
            return
        numbers = range(submit.first_sequence, submit.first_sequence + submit.n)
        used = any((frontend, number) in self._numbers() for number in numbers[:1000])
        if used or not 1 <= submit.n <= MAX_OUTPUTS or numbers.stop > 2**64:
            self._refused_frontend = frontend
            self._frontend_down(events.FrontendDown(frontend))
            return
        deadline = self.now + submit.timeout_ms / 1000
        request = RequestBook(asked, self.books.make(asked), self.now, deadline)
        code = self._refusal(request)
        if code is not None:
            self._refused = {(frontend, number): code for number in numbers}
            self._refused_request = submit.trace_id, code
            return
        self.books.requests[frontend, submit.first_sequence] = request
        for index, number in enumerate(numbers):
            self.books.arrivals += 1
            key = frontend, number
            sequence = SequenceBook(request, key, index, self.books.arrivals, self.now)
            self.shares.waits(sequence)
            request.sequences.append(sequence)
            self.books.sequences[key] = sequence

    def _numbers(self) -> set[Key]:
        """Of all sequences of requests that are open."""
        return {each.key for request in self.books.requests.values() for each in request.sequences}

    def _refusal(self, request: RequestBook) -> str | None:
        books, submit = self.books, request.submit
        if books.draining:
            return DrainingError.code
        if request.asked.fault is not None:
            return request.asked.fault.code
        size = len(request.task)
        if size > MAX_TASK_BYTES or size * submit.n > self.bounds.max_fanout_bytes:
            return TooLargeError.code
        if books.makes and submit.model not in {model for model, _ in books.makes}:
            return UnknownModelError.code
        waits = request.make in books.offers and not request.half
        if not (books.pairs(request.make) or waits):
            return NoPairError.code
        if code := self._unmet_refusal(request):
            return code
        if request.half and submit.n != 1:
            return InvalidRequestError.code
        if request.half and (code := self._half_refusal(request)):
            return code
        starts = self._starts_at_once(request)
        waiting = [each.request.submit for each in books.waiting()]
        key = [each.fairness for each in waiting if each.tenant == submit.tenant]
        mine = len(key) if submit.tenant else 0
        flow = key.count(submit.fairness) if submit.fairness else 0
        left_over = submit.n - (self.bounds.max_queue - len(waiting) - mine - flow)
        if left_over > 0 and left_over > starts:
            return QueueFullError.code
        full = 4 * (self._kept_bytes() + size) > 3 * self._memory
        return QueueFullError.code if full else None

    def _unmet_refusal(self, request: RequestBook) -> str | None:
        tokens, names, adapters, used = request.wanted
        offers = [each for each in self.books.offers[request.make] if adapters <= each[2]]
        if not offers:
            return UnknownModelError.code
        knowing = [
            context
            for context, known, _, cannot in offers
            if names <= known and used.isdisjoint(cannot)
        ]
        if not knowing:
            return UnsupportedError.code
        return ContextLengthError.code if tokens > max(knowing) else None

    def _half_refusal(self, request: RequestBook) -> str | None:
        """Why a request of one phase cannot run, as the fleet is."""
        books, voucher = self.books, request.voucher
        if voucher is None:
            return None if books.parkers(request) else UnsupportedError.code
        rooms = {leg.room for leg in books.legs.values()}
        keeper = books.keeper(voucher.kv_peer)
        known = keeper is not None and make_of(keeper.profile) == request.make
        if not known or voucher.model != request.submit.model or voucher.room in rooms:
            return VoucherError.code
        return None if books.decoders(voucher.kv_peer) else NoPairError.code

    def _half_end(self, sequence: SequenceBook) -> str | None:
        """Why one that waits cannot run any more, as the fleet is."""
        if sequence.full and not self._may_park(sequence):
            return ParkingFullError.code
        return self._half_refusal(sequence.request)

    def _half_starts(self, sequence: SequenceBook) -> bool:
        """Whether one that waits has a slot."""
        if sequence.request.submit.context_only:
            return any(each.free for each in self._may_park(sequence))
        return self._free_slots(sequence.request) > 0

    def _starts_at_once(self, request: RequestBook) -> int:
        waiting = self.books.waiting(request.line)
        half = request.half
        if waiting and (half or min(waiting, key=self.shares.turn).request.half):
            return 0
        return self._free_slots(request)

    def _free_slots(self, request: RequestBook) -> int:
        if request.voucher is not None:
            return sum(each.free for each in self.books.decoders(request.voucher.kv_peer))
        if request.submit.context_only:
            return sum(each.free for each in self.books.parkers(request))
        return self.books.free_pairs(request)

    def _cancel(self, event: events.Cancel) -> None:
        request = self.books.requests.get((event.frontend, event.first_sequence))
        if request is not None:
            self._end_request(request, CancelledError.code)

    def _worker_up(self, event: events.WorkerUp) -> None:
        self._lose(event.worker)
        worker = self.books.workers[event.worker] = WorkerBook(
            event.worker,
            event.profile,
            event.listed_as,
            event.profile.draining,
            event.other_legs,
            event.other_legs,
        )
        worker.fleet = self.books.workers
        worker.stalled = self._is_stalled(event.step_age)
        worker.past = self.books.health.past(event.worker)
        worker.past.closed_until = 0.0
        self.canaries.worker_up(worker)
        self.books.health.consider(worker)
        self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)
        profile = event.profile
        differ = Counter(
            (event.worker, str(profile.fingerprint.difference(each.profile.fingerprint)))
            for each in self.books.workers.values()
            if each.profile.phase is not profile.phase
            and each.profile.fingerprint.model == profile.fingerprint.model
            and each.profile.fingerprint != profile.fingerprint
            and not (each.aggregated or worker.aggregated)
        )
        if profile.phase is not event.listed_as or profile.max_sequences < 1:
            differ[event.worker, "it"] = 1
        self._rejected = dict(differ)

    def _worker_down(self, event: events.WorkerDown) -> None:
        self._lose(event.worker, died=event.died, unsent=event.unsent)

    def _lose(self, key: str, *, died: bool = True, unsent: frozenset[int] = frozenset()) -> None:
        worker = self.books.workers.pop(key, None)
        if worker is None:
            return
        self.canaries.worker_gone(worker)
        self.books.health.lost(worker, died=died, unsent=unsent)
        self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)
        condemned: list[RequestBook] = []
        if died:
            condemned = self._died(worker, unsent, told=False)
        for leg in list(worker.legs.values()):
            lost: TandemError = WorkerLostError("it was lost")
            if worker.draining and leg.sequence.stage == "running" and not leg.sequence.shown:
                lost = DrainingError("it had drained")
            self._closed(
                leg,
                events.LegClosed(
                    key,
                    leg.number,
                    Outcome.LOST,
                    error=lost,
                    retryable=True,
                    begun=leg.number not in unsent,
                ),
            )
        self._condemn(condemned)

    def _died(
        self, worker: WorkerBook, unsent: frozenset[int] = frozenset(), *, told: bool
    ) -> list[RequestBook]:
        """What had begun on a worker may have ended it. Returns what may risk no further one.
        `told`: it said so by a leg. A process of two phases is counted once, by its decode phase.
        """
        twin = worker.twin
        if twin is not None and worker.profile.phase is Phase.PREFILL:
            if not told:
                return []
            worker, twin = twin, worker
        if worker.died:
            return []
        worker.died = True
        if twin is not None:
            twin.died = True
        begun = {
            leg.sequence.request
            for leg in worker.legs.values()
            if leg.number not in unsent or (worker.aggregated and not leg.sequence.unsent)
        }
        blamed = [each for each in begun if not each.canary]
        if not blamed:
            return []
        self._worker_died = worker.key, sorted(each.submit.trace_id for each in blamed)
        alone = len({each.client for each in begun}) == 1 and not worker.others
        clients = {each.client for each in blamed}
        everything = {*blamed, *self.books.requests.values()}
        suspects = [each for each in everything if each.client in clients]
        for request in suspects:
            request.deaths += 2 if alone else 1
        return [each for each in suspects if each.deaths >= 2]

    def _condemn(self, requests: list[RequestBook]) -> None:
        for request in requests:
            for sequence in request.open:
                if sequence.key not in self._due and not (
                    sequence.stage == "running" and sequence.shown
                ):
                    self._end(sequence, WorkerLostError.code)

    def _worker_draining(self, event: events.WorkerDraining) -> None:
        if worker := self.books.workers.get(event.worker):
            worker.draining = event.draining
            if event.draining and not worker.died:
                self.canaries.drained(worker)
            self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)

    def _worker_load(self, event: events.WorkerLoad) -> None:
        if worker := self.books.workers.get(event.worker):
            load = event.load
            worker.others = max(0, load.open_legs - len(worker.legs))
            worker.kv_tokens = load.kv_tokens_total
            tokens: int | None = load.kv_tokens_used
            if worker.profile.phase is Phase.PREFILL:
                tokens = load.prompt_tokens if load.HasField("prompt_tokens") else None
            known = tokens is not None
            worker.others_tokens = max(0, tokens - worker.tokens) if known else worker.others
            if load.HasField("cache"):
                worker.cache.report(load.cache, self.now)
            if load.moved_kv and not worker.proved:
                self.canaries.prove(worker)
                self._take_proved()
            age = load.step_age_ms / 1000 if load.HasField("step_age_ms") else None
            stalled = self._is_stalled(age)
            if stalled != worker.stalled:
                worker.stalled = stalled
                self.books.health.news.append((worker.key, f"stalled: {stalled}"))
                self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)
            patience = self.bounds.stall_failover_seconds
            if worker.legs and not worker.given_up and age is not None and age >= patience:
                worker.given_up = True
                self.books.health.news.append((worker.key, "given up"))

    def _is_stalled(self, step_age: float | None) -> bool:
        return step_age is not None and step_age >= self.bounds.stall_seconds

    def _worker_fault(self, event: events.WorkerFault) -> None:
        self.books.health.fault(event.worker)
        if event.worker in self.books.workers:
            self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)

    def _leg(self, worker: str, number: int) -> LegBook | None:
        leg = self.books.legs.get(number)
        return leg if leg is not None and leg.worker.key == worker else None

    def _leg_started(self, event: events.LegStarted) -> None:
        leg = self._leg(event.worker, event.leg)
        if leg is None or leg.phase is not Phase.DECODE:
            return
        sequence = leg.sequence
        if sequence.stage == "running" and not sequence.shown:
            sequence.shown = True
            if sequence.made is not None and sequence.made.used:
                sequence.made.forget()
            self._let_go(sequence.request)
        elif sequence.stage == "retrying" and not leg.held:
            self._end_failed(sequence)  # it may have been shown

    def _let_go(self, request: RequestBook) -> None:
        request.let_go = request.let_go or not any(each.may_run for each in request.sequences)

    def _leg_made(self, event: events.LegMade) -> None:
        leg = self._leg(event.worker, event.leg)
        made = None if leg is None else leg.sequence.made
        if leg is None or made is None or not made.serves:
            return
        sequence = leg.sequence
        if sequence.stage != "running" or not sequence.shown or sequence.key in self._due:
            return
        full = 4 * (self._kept_bytes() + len(event.steps)) > 3 * self._memory
        made.over, made.refused = event.over, bool(event.obstacle) or full
        made.steps, made.tokens = made.steps + event.steps, made.tokens + event.tokens
        if not made.serves:
            made.forget()
            self._let_go(sequence.request)

    def _kept_bytes(self) -> int:
        books = self.books
        kept = {*books.requests.values(), *(leg.sequence.request for leg in books.legs.values())}
        return sum(each.kept for each in kept)

    def _leg_verdict(self, event: events.LegVerdict) -> None:
        if leg := self._leg(event.worker, event.leg):
            self._verdict(leg, event.terminate, event.reason, event.completion_tokens)

    def _leg_parked(self, event: events.LegParked) -> None:
        leg = self._leg(event.worker, event.leg)
        if leg is not None and leg.phase is Phase.PREFILL:
            leg.sequence.parked = event

    def _verdict(self, leg: LegBook, terminate: bool, reason: str, tokens: int = 0) -> None:
        sequence = leg.sequence
        running = sequence.stage == "running"
        if leg.phase is Phase.DECODE:
            if sequence.request.canary:
                if terminate:
                    self.canaries.terminated(sequence)
            elif terminate:
                self._end_request(
                    sequence.request, _END, reason, spared=sequence if running else None
                )
            return
        if sequence.judged or not running:
            return
        if sequence.request.canary:
            if terminate and leg.worker.profile.propagate_terminate:
                self.canaries.terminated(sequence)
            return
        sequence.judged = True
        alone = sequence.request.submit.context_only
        if terminate and (alone or leg.worker.profile.propagate_terminate):
            self._end(sequence, _END, reason, tokens)
            self._end_request(sequence.request, _END, reason)
        else:
            self._must_release(sequence)

    def _must_release(self, sequence: SequenceBook) -> None:
        if sequence.decode is not None and sequence.decode.held:
            self._release.add(sequence.decode.number)

    def _leg_closed(self, event: events.LegClosed) -> None:
        leg = self._leg(event.worker, event.leg)
        if leg is None:
            return
        condemned: list[RequestBook] = []
        if event.worker_died:
            condemned = self._died(leg.worker, told=True)
            leg.worker.draining = True
            self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)
        self.books.health.closed(leg, event)
        self.canaries.suspect(leg, event)
        self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)
        self._closed(leg, event)
        self._condemn(condemned)
        if isinstance(event.error, QueueFullError):
            worker = leg.worker
            full = worker.profile.max_sequences - len(worker.legs)
            worker.others = max(worker.others, full)
        elif isinstance(event.error, DrainingError):
            leg.worker.draining = True
            self.canaries.drained(leg.worker)
            self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)

    def _closed(self, leg: LegBook, closed: events.LegClosed) -> None:
        sequence = leg.sequence
        del self.books.legs[leg.number]
        leg.worker.legs.pop(leg.number, None)
        leg.worker.cache.closed(leg.number, self.now)
        if leg is sequence.prefill:
            sequence.prefill = None
            sequence.unsent = not closed.begun
        else:
            sequence.decode = None
        if not sequence.legs and not sequence.request.canary:
            self.shares.settled(sequence, self.now - sequence.begun_at)
        if closed.outcome is Outcome.TERMINATED:
            self._verdict(leg, True, closed.reason)
            if sequence.key in self._due:
                return
        if sequence.request.canary:
            self._canary_closed(leg, closed)
            return
        if sequence.stage == "retrying":
            self._when_settled(sequence)
        elif sequence.stage == "running":
            if leg.phase is Phase.PREFILL:
                self._prefill_closed(sequence, leg, closed)
            else:
                self._decode_closed(sequence, leg, closed)

    def _canary_closed(self, leg: LegBook, closed: events.LegClosed) -> None:
        self.canaries.closed(leg, closed)
        self._take_proved()

    def _take_proved(self) -> None:
        proved, self.canaries.proved = self.canaries.proved, []
        for worker in proved:
            self.books.health.consider(worker)
        if proved:
            self.books.note_fleet(self.now, self.bounds.pair_memory_seconds)

    def _prefill_closed(
        self, sequence: SequenceBook, leg: LegBook, closed: events.LegClosed
    ) -> None:
        held = sequence.decode is not None and sequence.decode.held
        held = held and sequence.decode.number not in self._release
        if sequence.request.submit.context_only and closed.outcome is Outcome.FINISHED:
            self._context_closed(sequence, leg)
        elif closed.outcome in (Outcome.FINISHED, Outcome.TERMINATED):
            if held and leg.worker.profile.has_hook:
                self._end(sequence, HookError.code)
            else:
                self._must_release(sequence)
        elif closed.outcome is Outcome.LOST and sequence.shown and not held:
            pass
        else:
            if isinstance(closed.error, ParkingFullError):
                sequence.full.add(leg.worker.key)
            self._failed(sequence, closed)

    def _context_closed(self, sequence: SequenceBook, leg: LegBook) -> None:
        parked = sequence.parked
        if leg.worker.profile.has_hook and not sequence.judged:
            self._end(sequence, HookError.code)
        elif parked is None:
            self._end(sequence, WorkerError.code)
        else:
            self._vouchers[sequence.key] = common_pb2.Voucher(
                room=leg.room,
                kv_peer=leg.worker.profile.kv_endpoint,
                model=sequence.request.submit.model,
                task_digest=parked.task_digest,
                first_token_ids=parked.token_ids,
                first_logprobs=parked.logprobs,
            )
            self._ended(sequence)

    def _decode_closed(
        self, sequence: SequenceBook, leg: LegBook, closed: events.LegClosed
    ) -> None:
        request = sequence.request
        once = request.voucher is not None or request.let_go
        if closed.outcome is Outcome.REGENERATE and once:
            self._end(sequence, WorkerError.code)
        elif closed.outcome is Outcome.REGENERATE:
            if sequence.request.deaths >= 2:
                self._end(sequence, WorkerLostError.code)
                return
            if sequence.regenerations >= self.bounds.max_regenerations:
                self._end(sequence, WorkerError.code)
                return
            sequence.regenerations += 1
            sequence.made = None
            sequence.overlay = closed.overlay
            sequence.retries = 0
            sequence.pair = sequence.avoided = None
            sequence.failure = NoPairError("")
            self._again(sequence)
        elif sequence.made is not None and (closed.outcome is Outcome.LOST or closed.worker_died):
            self._decode_lost(sequence, sequence.made, leg, closed)
        elif closed.outcome not in (Outcome.FINISHED, Outcome.TERMINATED):
            self._failed(sequence, closed)
        elif leg.held:
            self._end(sequence, InternalError.code)
        else:
            self._ended(sequence)

    def _decode_lost(
        self, sequence: SequenceBook, made: MadeBook, leg: LegBook, closed: events.LegClosed
    ) -> None:
        """Another pair goes on, once; what was held begins again."""
        request = sequence.request
        held = leg.held and leg.number not in self._release
        known = bool(made.steps) and not made.refused
        may = sequence.retries < self.bounds.max_retries if held else known
        if not sequence.shown:
            self._failed(sequence, closed)
        elif made.over:
            self._ended(sequence)
        elif (
            may
            and not made.used
            and request.deaths < 2
            and self.books.expects_pair(request, sequence.pair)
        ):
            sequence.avoided, sequence.failure = sequence.pair, WorkerLostError("")
            if held:
                sequence.made = None
                sequence.retries += 1
            else:
                made.used = True
            self._again(sequence)
        else:
            self._end(sequence, WorkerLostError.code)

    def _failed(self, sequence: SequenceBook, closed: events.LegClosed) -> None:
        error = closed.error or WorkerError("no reason")
        repeatable = closed.retryable and not sequence.shown
        if repeatable and sequence.request.deaths >= 2:
            drained = isinstance(error, DrainingError)
            self._end(sequence, WorkerLostError.code if drained else error.code)
        elif repeatable and (not closed.begun or isinstance(error, QueueFullError | DrainingError)):
            told = NoPairError("") if isinstance(error, DrainingError) else error
            sequence.failure = sequence.failure or told
            self._again(sequence)
        elif repeatable and isinstance(error, ParkingFullError) and self._may_park(sequence):
            sequence.failure = error
            self._again(sequence)
        elif (
            repeatable
            and not sequence.request.half
            and sequence.retries < self.bounds.max_retries
            and self.books.expects_pair(sequence.request, sequence.pair)
        ):
            sequence.retries += 1
            sequence.avoided = sequence.pair
            sequence.failure = error
            self._again(sequence)
        else:
            resumed = sequence.made is not None and sequence.made.used
            refused = resumed and isinstance(error, RequestError)
            self._end(sequence, WorkerLostError.code if refused else error.code)

    def _may_park(self, sequence: SequenceBook) -> list[WorkerBook]:
        """Who may run a context-only sequence, and has not said that it has no room."""
        request = sequence.request
        parkers = self.books.parkers(request) if request.submit.context_only else []
        return [each for each in parkers if each.key not in sequence.full]

    def _again(self, sequence: SequenceBook) -> None:
        sequence.stage = "retrying"
        self._when_settled(sequence)

    def _when_settled(self, sequence: SequenceBook) -> None:
        if sequence.legs:
            return
        if len(self.books.waiting()) < self.bounds.max_queue:
            self.shares.waits(sequence)
            sequence.stage, sequence.waits_since = "waiting", self.now
            sequence.shown = False
        else:
            self._end_failed(sequence)

    def _tick(self, event: events.Tick) -> None:
        self.books.forget(self.now, self.bounds.pair_memory_seconds)
        for sequence in self.books.waiting():
            unmet, avoided = self.books.unmet_since(sequence.request), sequence.avoided
            if unmet is None and avoided and not self.books.has_pair(sequence.request, avoided):
                unmet = sequence.waits_since
            if unmet is not None:
                since = max(unmet, sequence.waits_since)
                if self.now - since < self.bounds.pair_wait_seconds:
                    continue
                if not sequence.request.begun:
                    self._unbegun.add(sequence.key)
                if avoided:
                    self._end_failed(sequence)
                else:
                    self._end(sequence, NoPairError.code)

    def _drain(self, event: events.Drain) -> None:
        self.books.draining = True
        self.canaries.stop()

    def _abandon(self, event: events.Abandon) -> None:
        self.books.draining = True
        self.canaries.stop()
        for request in list(self.books.requests.values()):
            code = RouterLostError.code if request.begun else DrainingError.code
            self._end_request(request, code)

    # --- how sequences end -----------------------------------------------------------------------

    def _end_request(
        self,
        request: RequestBook,
        code: str,
        reason: str = "",
        *,
        spared: SequenceBook | None = None,
    ) -> None:
        for sequence in request.open:
            if sequence.key not in self._due and sequence is not spared:
                self._end(sequence, code, reason)

    def _end(self, sequence: SequenceBook, code: str, reason: str = "", tokens: int = 0) -> None:
        """It must be ended by the core, now."""
        self._due[sequence.key] = code, reason, tokens

    def _end_failed(self, sequence: SequenceBook) -> None:
        failure = sequence.failure
        assert failure is not None
        self._end(sequence, failure.code)

    def _ended(self, sequence: SequenceBook) -> None:
        if sequence.made is not None:
            sequence.made.forget()
        waited, sequence.stage = sequence.stage == "waiting", "ended"
        del self.books.sequences[sequence.key]
        if waited:
            self.shares.rests(sequence)
        self._due.pop(sequence.key, None)
        request = sequence.request
        if not request.open:
            del self.books.requests[request.frontend, request.submit.first_sequence]
            self._closed_requests.append(request)

    # --- what the core did -----------------------------------------------------------------------

    def _judge_end_sequence(self, action: actions.EndSequence) -> None:
        key = action.frontend, action.sequence
        code = _END if action.error is None else action.error.code
        if action.frontend not in self.books.frontends:
            self.fault(f"frontend {action.frontend} is gone and is told of {key}")
        if action.refused is not (key in self._refused or key in self._unbegun):
            self.fault(f"whether {key} is refused is not said as it is")
        if key in self._refused:
            if self._refused.pop(key) != code:
                self.fault(f"{key} is refused with {code}")
            return
        sequence = self.books.sequences.get(key)
        if sequence is None:
            self.fault(f"sequence {key} is ended twice, or never was")
            return
        expected = self._due.get(key)
        if expected is None and sequence.stage == "waiting" and sequence.request.half:
            refusal = self._half_end(sequence)
            expected = None if refusal is None else (refusal, "", 0)
        if expected is None and self._hopeless(sequence):
            assert sequence.failure is not None
            expected = sequence.failure.code, "", 0
        told = code, action.stop_reason, action.completion_tokens
        if expected is None:
            self.fault(f"sequence {key} is ended with {code} for no reason")
        elif expected != told:
            self.fault(f"sequence {key} is ended with {told}, not {expected}")
        self._ended(sequence)

    def _hopeless(self, sequence: SequenceBook) -> bool:
        """It waits for another pair than the one that failed, and there is none."""
        avoided = sequence.avoided
        waits = sequence.stage == "waiting" and avoided is not None
        return waits and not self.books.expects_pair(sequence.request, avoided)

    def _judge_start_leg(self, action: actions.StartLeg) -> None:
        command = action.command
        if action.leg <= self._last_leg:
            self.fault(f"leg number {action.leg} is used twice")
        self._last_leg = action.leg
        worker = self.books.workers.get(action.worker)
        if command.canary and worker is not None:
            leg = self.canaries.judge_start(action)
            worker.legs[leg.number] = self.books.legs[leg.number] = leg
            self.books.health.started(leg)
            return
        sequence = self.books.sequences.get((command.destination, command.sequence))
        if worker is None or sequence is None:
            self.fault(f"leg {action.leg} is started for nobody, or nowhere")
            return
        phase = worker.profile.phase
        self._made_rules(action, sequence, phase)
        gone_on = sequence.gone_on
        tokens = sequence.request.tokens
        if phase is Phase.PREFILL:
            said = command.HasField("to_compute")
            booked = command.to_compute if said else None
            tokens = worker.cache.start(
                action.leg,
                sequence.request.asked.prompt_blocks,
                tokens,
                None if booked is None else booked - min(gone_on, 2**32 - 1 - tokens),
                self.fault,
                block=tandem_router.core.worker.BLOCK_TOKENS,
                forgets=self.forgets,
            )
        expected = 0 if phase is Phase.PREFILL else sequence.request.submit.expected_tokens
        tokens += max(gone_on, expected)
        room, hold = command.room, command.hold_output
        leg = LegBook(action.leg, worker, phase, sequence, room, hold, tokens)
        self._start_rules(action, leg)
        if sequence.request.half:
            self._half_rules(action, sequence, leg)
        elif phase is Phase.PREFILL:
            preferred = self._preferred_prefill(sequence)
            if worker not in preferred:
                self.fault(f"{sequence.key} is started on {worker}, and a better one is free")
            elif self.releases and not any(each.others for each in preferred):
                alike = [each for each in preferred if each.aggregated == worker.aggregated]
                self._release_rules(leg, alike)
            sequence.prefill = leg
        else:
            sequence.decode = leg
            self._pair_rules(action, sequence, leg)
        worker.legs[leg.number] = self.books.legs[leg.number] = leg
        self.books.health.started(leg)

    def _release_rules(self, leg: LegBook, preferred: list[WorkerBook]) -> None:
        """Nothing keeps a prompt at a worker that is further behind than what that counts for."""
        best = min(preferred, key=lambda each: (each.load, each.key))
        sequence = leg.sequence
        whole = sequence.request.tokens + sequence.gone_on
        hint = tandem_router.core.worker.BLOCK_TOKENS
        slots, its_slots = leg.worker.profile.max_sequences, best.profile.max_sequences
        behind = leg.worker.load + (OVERLAP_WEIGHT * leg.tokens - hint) / slots
        if behind > best.load + OVERLAP_WEIGHT * whole / its_slots + 1e-9:
            self.fault(f"{sequence.key} is kept at {leg.worker}, which is further behind")

    def _start_rules(self, action: actions.StartLeg, leg: LegBook) -> None:
        command = action.command
        sequence, submit, worker = leg.sequence, leg.sequence.request.submit, leg.worker
        if worker.free < 1 or not worker.takes:
            self.fault(f"leg {leg.number} is started on {worker.key}, which takes none")
        if make_of(worker.profile) != sequence.request.make:
            self.fault(f"leg {leg.number} is started on {worker.key}, of another make")
        left = min(max(1, int((sequence.request.deadline - self.now) * 1000)), 2**32 - 1)
        if command.timeout_ms != left:
            self.fault(f"leg {leg.number} has {command.timeout_ms} ms of {left} that are left")
        if (action.task, action.overlay) != (sequence.request.task, sequence.overlay):
            self.fault(f"leg {leg.number} gets another task than its request has")
        if bool(action.request) != (submit.n > 1):
            self.fault(
                f"leg {leg.number}: that its task is others' too is not said, or is no truth"
            )
        if command.output_index != sequence.index:
            self.fault(f"leg {leg.number} has output index {command.output_index}")
        for other in self.books.legs.values():
            if (other.room == leg.room) != (other.sequence is sequence) or not leg.room:
                self.fault(f"legs {other.number} and {leg.number}: rooms {other.room}, {leg.room}")

    def _made_rules(self, action: actions.StartLeg, sequence: SequenceBook, phase: Phase) -> None:
        """It goes on from what was made, in both phases, or its decode worker is to say that."""
        submit = sequence.request.submit
        used = sequence.made is not None and sequence.made.used
        if not used and phase is Phase.PREFILL:
            wanted = submit.resume and not sequence.request.half
            sequence.made = MadeBook() if wanted else None
        made = sequence.made
        expected = b"" if made is None or not made.used else made.steps
        says = made is not None and not made.used and phase is Phase.DECODE
        if (action.made, action.command.say_made) != (expected, says):
            self.fault(f"leg {action.leg} goes on from {action.made!r}, not from {expected!r}")

    def _half_rules(self, action: actions.StartLeg, sequence: SequenceBook, leg: LegBook) -> None:
        """What must be true of a leg that is all of its sequence, and of whose turn it is."""
        command = action.command
        submit, worker, books = sequence.request.submit, leg.worker, self.books
        voucher = sequence.request.voucher
        kv_peer, digest, room = "", b"", leg.room
        if voucher is None:
            may = self._may_park(sequence)
            sequence.prefill = leg
        else:
            may = books.decoders(voucher.kv_peer)
            kv_peer, digest, room = voucher.kv_peer, voucher.task_digest, voucher.room
            sequence.decode = leg
        if worker not in _preferred([each for each in may if each.free], None):
            self.fault(f"{sequence.key} is started on {worker}, and a better one is free")
        told = command.context_only, command.kv_peer, command.task_digest, command.room
        if told != (submit.context_only, kv_peer, digest, room) or command.hold_output:
            self.fault(f"leg {leg.number} is told {told}")
        self._turn_rules(sequence, None)
        self._runs(sequence)

    def _runs(self, sequence: SequenceBook) -> None:
        sequence.stage, sequence.begun, sequence.begun_at = "running", True, self.now
        sequence.parked = None
        self.shares.begins(sequence)
        submit = sequence.request.submit
        self._begun[submit.trace_id, submit.first_sequence] = self.now
        sequence.judged = sequence.shown = sequence.unsent = False

    def _pair_rules(
        self, action: actions.StartLeg, sequence: SequenceBook, decode: LegBook
    ) -> None:
        """What must be true of the two legs together, and of whose turn it is."""
        command = action.command
        prefill = sequence.prefill
        if prefill is None or sequence.stage != "waiting":
            self.fault(f"sequence {sequence.key} is started while it is {sequence.stage}")
            return
        pair = prefill.worker, decode.worker
        mine, theirs = prefill.worker.profile, decode.worker.profile
        if mine.fingerprint != theirs.fingerprint:
            self.fault(f"{pair} do not match")
        if command.kv_peer != mine.kv_endpoint:
            self.fault(f"leg {decode.number} is sent to {command.kv_peer} for its KV")
        submit = sequence.request.submit
        shows = submit.want_report or submit.want_cost or submit.prompt_logprobs
        held = mine.has_hook or shows
        held = held and not (sequence.made is not None and sequence.made.used)
        if command.hold_output != held:
            self.fault(f"leg {decode.number}: hold_output is {command.hold_output}")
        if command.say_logprobs != theirs.judges_logprobs:
            self.fault(f"leg {decode.number}: say_logprobs is {command.say_logprobs}")
        if pair == sequence.avoided:
            self.fault(f"sequence {sequence.key} is tried again on the pair that failed")
        self._turn_rules(sequence, pair)
        if decode.worker not in self._preferred_decode(sequence, prefill.worker):
            self.fault(f"{sequence.key} is started on {decode.worker}, and a better one is free")
        if command.context_only or command.task_digest:
            self.fault(f"leg {decode.number} of a pair is told that it runs alone")
        sequence.pair = pair
        self._runs(sequence)

    def _turn_rules(self, sequence: SequenceBook, pair: PairBook | None) -> None:
        """`pair`: None where it starts without. Then it passes whoever avoids what is left, or has
        none that can run it while others have.
        """
        turn = self.shares.turn
        mine = turn(sequence)
        for other in self.books.waiting(sequence.request.line):
            passed = other.avoided == pair if pair else other.avoided is not None
            can = self._can_run(pair, other) if pair else self._keeps_its_turn(other)
            passed = passed or not can
            if other is not sequence and turn(other) < mine and not passed:
                self.fault(f"{sequence.key} is started before {other.key}, whose turn it is")

    def _groups_for(
        self, sequence: SequenceBook
    ) -> Iterator[tuple[list[WorkerBook], list[WorkerBook]]]:
        return self.books.groups(sequence.request.make, sequence.request.wanted)

    def _keeps_its_turn(self, sequence: SequenceBook) -> bool:
        """Whether what may start without a pair waits for it: unless pairs are free, none its."""
        request, books = sequence.request, self.books
        if request.half or books.startable(request.make, NOTHING, None) is None:
            return True
        return books.startable(request.make, request.wanted, sequence.avoided) is not None

    def _can_run(self, pair: PairBook, sequence: SequenceBook) -> bool:
        return any(pair[0] in prefill for prefill, _ in self._groups_for(sequence))

    def _preferred_prefill(self, sequence: SequenceBook) -> list[WorkerBook]:
        avoided = sequence.avoided
        found = []
        for prefills, decodes in self._groups_for(sequence):
            free = [each for each in decodes if each.free]
            for worker in prefills:
                alone = avoided is not None and (worker, free) == (avoided[0], [avoided[1]])
                if free and worker.free and not alone:
                    found.append(worker)
        return _preferred(found, avoided and avoided[0])

    def _preferred_decode(self, sequence: SequenceBook, prefill: WorkerBook) -> list[WorkerBook]:
        avoided = sequence.avoided
        for prefills, decodes in self._groups_for(sequence):
            if prefill in prefills:
                free = [each for each in decodes if each.free]
                if avoided is not None and prefill is avoided[0]:
                    free = [each for each in free if each is not avoided[1]]
                return _preferred(free, avoided and avoided[1])
        return []

    def _judge_give_voucher(self, action: actions.GiveVoucher) -> None:
        key = action.frontend, action.sequence
        if action.frontend not in self.books.frontends:
            self.fault(f"frontend {action.frontend} is gone and is given a voucher")
        if self._vouchers.pop(key, None) != action.voucher:
            self.fault(f"{action.voucher} is given of sequence {key}")

    def _judge_release_leg(self, action: actions.ReleaseLeg) -> None:
        leg = self._leg(action.worker, action.leg)
        if leg is None or action.leg not in self._release:
            self.fault(f"leg {action.leg} is released and was not judged")
            return
        self._release.discard(action.leg)
        leg.held = False

    def _judge_cancel_leg(self, action: actions.CancelLeg) -> None:
        leg = self._leg(action.worker, action.leg)
        if leg is None or leg.cancelled_at is not None:
            self.fault(f"leg {action.leg} is cancelled and is not there, or twice")
            return
        if leg.sequence.stage not in ("ended", "retrying") and leg.sequence.key not in self._due:
            self.fault(f"leg {action.leg} of a sequence that goes on is cancelled")
        leg.cancelled_at = self.now

    def _judge_request_ended(self, action: actions.RequestEnded) -> None:
        story = action.story
        self._judge_story(story)
        if action.refused:
            if self._refused_request != (story.trace_id, story.outcome):
                self.fault(f"{story} is told of no request that was refused")
            self._refused_request = None
            return
        for request in self._closed_requests:
            if request.submit.trace_id == story.trace_id:
                self._closed_requests.remove(request)
                return
        self.fault(f"request {story.trace_id} is said to have ended and has not")

    def _judge_story(self, story: Story) -> None:
        """It goes forward in time, tells an end of each output, and no try after the last one."""
        for told in story.sequences:
            times = [0.0, *(moment.at for moment in told.moments), told.seconds, story.seconds]
            if len(told.moments) < MOST_MOMENTS and times != sorted(times):
                self.fault(f"a story goes back in time: {told}")
            if not told.outcome or told.stage != "ended":
                self.fault(f"a story ends before its output: {told}")
            runs = [moment for moment in told.moments if moment.name == "pair_chosen"]
            again = [
                each for each in told.moments if each.name in ("retry", "regenerate", "resume")
            ]
            if len(told.moments) < MOST_MOMENTS and len(runs) > len(again) + 1:
                self.fault(f"a story leaves out why it was run again: {told}")

    def _judge_refuse_frontend(self, action: actions.RefuseFrontend) -> None:
        if action.frontend != self._refused_frontend:
            self.fault(f"a good frontend is refused: {action.reason}")
        self._refused_frontend = None

    def _judge_pair_rejected(self, action: actions.PairRejected) -> None:
        key = action.worker, action.reason.partition(" ")[0]
        if self._rejected.pop(key, None) != action.pairs:
            self.fault(f"{action} is said, {self._rejected} was to be")

    def _judge_worker_died(self, action: actions.WorkerDied) -> None:
        told = action.worker, sorted(each.submit.trace_id for each in action.suspects)
        if told != self._worker_died:
            self.fault(f"{told} is said to have died, {self._worker_died} was to be")
        self._worker_died = None

    def _judge_news(self, worker: str, what: str) -> None:
        if (worker, what) not in self.books.health.news:
            self.fault(f"{worker} is said to be {what}, for no reason")
        else:
            self.books.health.news.remove((worker, what))

    def _judge_fleet_changed(self, action: actions.FleetChanged) -> None:
        self._served = {
            (model.name, model.tokenizer_sha256): model.ready_pairs for model in action.models
        }

    def _judge_worker_paired(self, action: actions.WorkerPaired) -> None:
        worker = self.books.workers.get(action.worker)
        if worker is None or worker.paired or not self.books.uses(worker):
            self.fault(f"{action.worker} is told that a pair uses it")
        else:
            worker.paired = True

    def _judge_settle_overdue(self, action: actions.SettleOverdue) -> None:
        if action.leg not in self._overdue:
            self.fault(f"leg {action.leg} is said to be overdue")
        self._overdue.discard(action.leg)

    # --- once it has acted -----------------------------------------------------------------------

    def _settle(self, event: Event | None) -> None:
        books = self.books
        if self._refused_frontend is not None:
            self.fault(f"frontend {self._refused_frontend} breaks the protocol and is not told")
        if self._worker_died is not None:
            self.fault(f"nobody says what {self._worker_died[0]} may have died of")
        self._worker_died = None
        for news in self.books.health.news:
            self.fault(f"{news} is not said")
        self.books.health.news.clear()
        if self._rejected:
            self.fault(f"nobody says why pairs are refused: {self._rejected}")
        if self._refused_request is not None:
            self.fault(f"nobody tells the story of what was refused: {self._refused_request}")
        self._refused_frontend = self._refused_request = None
        for key, expected in self._due.items():
            self.fault(f"sequence {key} has not ended with {expected}")
        for key, code in self._refused.items():
            self.fault(f"sequence {key} is not refused with {code}")
        for number in self._release:
            if number in books.legs and books.legs[number].cancelled_at is None:
                self.fault(f"leg {number} is judged and not released")
        for number in self._overdue:
            self.fault(f"leg {number} is overdue and nobody says so")
        for key in self._vouchers:
            if key[0] in books.frontends:
                self.fault(f"sequence {key} has ended, and leaves nothing")
        self._vouchers.clear()
        for request in self._closed_requests:
            self.fault(f"nobody says that request {request.submit.trace_id} has ended")
        self._due.clear()
        self._unbegun.clear()
        self._refused = {}
        self._release.clear()
        self._overdue.clear()
        self._closed_requests.clear()
        for leg in books.legs.values():
            if leg.cancelled_at is None and leg.sequence.stage in ("ended", "retrying"):
                self.fault(f"leg {leg.number} of a sequence that is over is not cancelled")
        if event is not None:
            self.canaries.settle(ticked=isinstance(event, events.Tick))
            self._conserve_work()
            if isinstance(event, _OF_THE_FLEET):
                self._know_fleet()

    def _conserve_work(self) -> None:
        """A free slot and a sequence that may have it never stand side by side."""
        asked = set()
        for sequence in self._waiting_for_pairs():
            request = sequence.request
            wanted = request.make, request.wanted, sequence.avoided
            if wanted in asked:
                continue
            asked.add(wanted)
            pair = self.books.startable(*wanted)
            if pair is not None:
                self.fault(f"{sequence.key} waits and {pair} could take it")
            elif self._hopeless(sequence) and self._is_next(sequence):
                self.fault(f"{sequence.key} waits for another pair and there is none")

    def _waiting_for_pairs(self) -> list[SequenceBook]:
        """Those that no sequence of one phase is before. Such a one, where it is next, is judged
        here.
        """
        found = []
        lines = {each.request.line for each in self.books.waiting()}
        for line in lines:
            for place, each in enumerate(sorted(self.books.waiting(line), key=self.shares.turn)):
                if each.request.half:
                    if place == 0 and (self._half_end(each) or self._half_starts(each)):
                        self.fault(f"{each.key} waits, and could start or never will")
                    break
                found.append(each)
        return found

    def _is_next(self, sequence: SequenceBook) -> bool:
        """Those behind others are looked at when it is their turn."""
        return sequence is min(self.books.waiting(sequence.request.line), key=self.shares.turn)

    def _know_fleet(self) -> None:
        books = self.books
        mine = {make: books.pairs(make) for make in books.makes}
        if mine != self._served:
            self.fault(f"frontends are told of {self._served} pairs, there are {mine}")
        for worker in books.workers.values():
            if not worker.paired and books.uses(worker):
                self.fault(f"{worker.key} is not told that a pair uses it")


def _preferred(workers: list[WorkerBook], avoided: WorkerBook | None) -> list[WorkerBook]:
    """Workers with overdue legs come last, then the one that has failed, and for who avoids it
    others that fail.
    """
    sound = [each for each in workers if not each.overdue] or workers
    if avoided is None:
        return sound
    return usual([each for each in sound if each is not avoided] or sound)
