"""The worker's core: events in, effects out. No I/O, clocks, asyncio or user code inside.

docs/design/0012-the-worker-core.md says why. Every leg ends with exactly one LegClosed, unless its
router has gone.

`link` is a number that the shell gives to a router's stream, never reused. `leg` is that router's
own number. `request_id` is this worker's number, by which engine, hooks and classifiers know a leg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tandem.byte_budget import Allotment, ByteBudget
from tandem.endings import Outcome
from tandem.engine.base import Delta, Ending
from tandem.errors import (
    DeadlineError,
    DrainingError,
    InternalError,
    QueueFullError,
    RequestError,
    TandemError,
    WorkerError,
)
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.deferred import Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.v1 import worker_pb2
from tandem.worker.core.effects import Effects
from tandem.worker.core.ends import Ends
from tandem.worker.core.ledger import CANARIES, Ledger, Taken
from tandem.worker.core.leg import OPEN, Closing, Leg, LegStage, Start
from tandem.worker.core.outgoing import (
    ALTERNATIVE_BYTES,
    FRAME_BYTES,
    MAX_BACKLOG_BYTES,
    TOKEN_BYTES,
    Outgoing,
)
from tandem.worker.core.replay import Replay
from tandem.worker.core.rules import PhaseRules
from tandem.worker.core.shows import Shows
from tandem.worker.core.state import CoreState
from tandem.worker.core.steps import EngineSteps

_WAITING, _RUNNING, _RULING, _ENDING = (
    LegStage.WAITING,
    LegStage.RUNNING,
    LegStage.RULING,
    LegStage.ENDING,
)
_NOTHING_LEFT = Ending.CANCELLED, Ending.FAILED
"""An engine keeps no KV of an output that ended so."""


def no_memory() -> WorkerError:
    """What the leg ends with that holds the most, where output finds no room."""
    return WorkerError("this worker has no memory for more of the output")


class WorkerCore:
    """All open legs of a worker. What happens to them is told by calls within `handle`."""

    def __init__(
        self,
        effects: Effects,
        *,
        rules: PhaseRules,
        worker: str,
        max_legs: int,
        hooked: bool,
        budget: ByteBudget,
        ledger: Ledger | None = None,
    ) -> None:
        """`worker`: its name, for reports. `hooked`: output passes hooks before it is shown.
        `budget`: of all bytes that the worker holds. `ledger`: of the process; None: one of its
        own.
        """
        ledger = ledger or Ledger(accounts=max_legs)
        self._state = CoreState(rules, worker, budget, effects, ledger)
        self._ends = Ends(self._state)
        self._shows = Shows(self._state, self._ends)
        self._steps = EngineSteps(self._state, self._ends, self._shows)
        self.max_legs = max_legs
        """The most that are open at once."""
        self._hooked = hooked
        self._sends: dict[int, partial[None]] = {}
        """What asks for a router's stream to be written, by link: made once, as each step asks."""
        self._to_cancel: set[int] = set()
        """Requests that the engine could not be told to let go of."""
        self.draining = False
        self.tokens = 0
        """Delivered by the engine, for legs that were open."""

    @property
    def budget(self) -> ByteBudget:
        """All bytes that the worker holds."""
        return self._state.budget

    def __len__(self) -> int:
        return len(self._state.open)

    @property
    def legs(self) -> Iterable[Leg]:
        """The open legs, to look at."""
        return self._state.open.values()

    def taken(self, now: float) -> Taken:
        """What each tenant has taken of the worker, up to now."""
        return self._state.ledger.read(now, self._state.rules.phase)

    def outgoing(self, link: int) -> Outgoing:
        """What waits for a router whose link is up."""
        return self._state.links[link]

    def handle(self, now: float, batch: Iterable[Callable[[], None]]) -> list[partial[None]]:
        """Take in what happened at `now`, in order: calls of the methods below, with `now` in
        seconds of a clock that never goes back. Returns the calls of the effects that are to be
        made, in order.
        """
        state = self._state
        state.now, state.asked = now, []
        for happened in batch:
            happened()
        for link, outgoing in state.links.items():
            backlog = outgoing.backlog
            if outgoing.waits and (backlog <= FRAME_BYTES or outgoing.allotment.hold(backlog)):
                state.asked.append(self._sends[link])
        if state.too_large:
            self._end_too_large()
        return state.asked

    def _give_up(self, link: int) -> None:
        reason = "the router does not read what it asked for"
        self._state.ask(self._state.effects.give_up, link, reason)

    def _end_too_large(self) -> None:
        """There was no memory for more output: end the legs that held most. Some may be over."""
        legs, self._state.too_large = self._state.too_large, []
        for leg in legs:
            if parcel := leg.waiting:
                parcel.spoil(no_memory())
                if leg.stage is LegStage.LEAVING:
                    leg.closing = Closing(Outcome.FAILED, error=no_memory())
            self._ends.fail(leg, no_memory())
            self._state.ask(self._state.effects.send, leg.link)

    # --- routers ---------------------------------------------------------------------------------

    def link_up(self, link: int) -> None:
        """A router's stream is open. What waits for it is `outgoing(link)`."""
        self._sends[link] = partial(self._state.effects.send, link)
        self._state.links[link] = Outgoing(
            self._state.budget.allotment(lambda: self._give_up(link), most=MAX_BACKLOG_BYTES)
        )

    def link_down(self, link: int) -> None:
        """A router's stream is gone: every leg that came by it ends."""
        if outgoing := self._state.links.pop(link, None):
            outgoing.gone()
            del self._sends[link]
        for leg in [leg for leg in self._state.open.values() if leg.link == link]:
            self._ends.end(leg, Closing(Outcome.CANCELLED, reason="router_lost"))

    def start(self, wanted: Start) -> None:
        """A router wants a leg whose task can run."""
        link, command, task, request = wanted.link, wanted.command, wanted.task, wanted.request
        if not self._may_use(link, command.leg):
            return
        if self.draining:
            self._refuse(link, command, DrainingError("this worker is shutting down"))
            return
        if len(self._state.open) >= self.max_legs:
            full = QueueFullError(f"this worker runs {self.max_legs} sequences already")
            self._refuse(link, command, full)
            return
        state = self._state
        allotment = state.budget.allotment(lambda: state.too_large.append(leg))
        try:
            allotment.admit(wanted.own_bytes)
        except QueueFullError as error:
            allotment.close()
            self._refuse(link, command, error)
            return
        # Prefill's hooks have judged the first token of a sequence that goes on here.
        fresh = self._state.rules.shows or not task.HasField("resume")
        leg = self._leg(wanted, allotment, hooked=self._hooked and fresh and not command.canary)
        state.open[leg.request_id] = state.numbers[link, leg.number] = leg
        state.groups.setdefault(leg.group, []).append(leg)
        info = SequenceInfo(
            request_id=leg.request_id,
            group=leg.group,
            output_index=leg.output_index,
            streaming=task.streaming,
            trace_id=leg.trace_id,
            tenant=task.tenant,
            replayed=len(request.made),
            lora_adapter=task.lora_adapter,
        )
        known = fresh and not command.canary
        state.ask(state.effects.begin, request, task, command, info, leg.to_compute, known)

    def _leg(self, wanted: Start, allotment: Allotment, *, hooked: bool) -> Leg:
        """The leg that a router wants. `allotment`: what the leg alone keeps. `hooked`: its output
        passes hooks before it is shown.
        """
        command, task, request = wanted.command, wanted.task, wanted.request
        rules = self._state.rules
        guard = None if command.canary else rules.guard(streaming=task.streaming)
        straight = rules.shows and not hooked and guard is None and not wanted.output.cuts
        replayed = None
        if rules.shows and request.made:
            replayed = Replay(task.resume, request.request_id, straight=straight)
        to_compute = _to_compute(command, len(request.token_ids))
        leg = Leg(
            request_id=request.request_id,
            link=wanted.link,
            number=command.leg,
            outgoing=self._state.links[wanted.link],
            allotment=allotment,
            destination=command.destination,
            sequence=command.sequence,
            output_index=command.output_index,
            trace_id=task.trace_id,
            parent_span=command.parent_span,
            prompt_tokens=len(request.token_ids),
            to_compute=to_compute,
            stay=self._state.ledger.begin(
                self._state.now,
                rules.phase,
                CANARIES if command.canary else task.tenant,
                weight=0 if command.kv_peer else max(1, to_compute),
                kv_tokens=len(request.token_ids),
            ),
            regenerations=task.regeneration.count,
            spent_tokens=task.regeneration.spent_tokens,
            want_text=task.want_text,
            want_token_ids=task.want_token_ids,
            want_logprobs=task.sampling.HasField("logprobs"),
            want_report=task.want_report,
            want_cost=task.want_cost,
            intake_seconds=wanted.intake_seconds,
            started_at=self._state.now,
            deadline=self._state.now + command.timeout_ms / 1000,
            output=wanted.output,
            guard=guard,
            token_bytes=TOKEN_BYTES + ALTERNATIVE_BYTES * task.sampling.logprobs,
            straight=straight and replayed is None and not command.say_made,
            hooked=hooked,
            says_made=command.say_made,
            obstacle=wanted.obstacle,
            replay=replayed,
            kv_peer=command.kv_peer,
            canary=command.canary,
            parking=wanted.parking,
            resumes=bool(command.task_digest),
        )
        if command.hold_output:
            leg.hold()
        return leg

    def unreadable(self, link: int, command: worker_pb2.StartLeg, error: TandemError) -> None:
        """A router wants a leg whose task cannot run, whatever the reason."""
        if self._may_use(link, command.leg):
            self._refuse(link, command, error)

    def _may_use(self, link: int, number: int) -> bool:
        """Whether a router that is there may begin a leg of that number."""
        if (link, number) in self._state.numbers:
            self._state.ask(self._state.effects.give_up, link, f"leg {number} is open already")
            return False
        return link in self._state.links

    def not_begun(self, request_id: int, command: worker_pb2.StartLeg, error: TandemError) -> None:
        """The engine refused a request that was to begin: it holds nothing, and says nothing
        more.
        """
        leg = self._state.open.get(request_id)
        if leg is not None:
            self._ends.forget(leg)
            self._refuse(leg.link, command, error)

    def not_cancelled(self, request_id: int) -> None:
        """The engine could not be asked to let go of a request: `tick` asks again."""
        self._to_cancel.add(request_id)

    def unsendable(self, link: int, destination: int, sequence: int) -> None:
        """A row of a sequence could not be written for its router, and was left out."""
        where = link, destination, sequence
        for leg in list(self._state.open.values()):
            if (leg.link, leg.destination, leg.sequence) == where:
                self._ends.fail(leg, InternalError("the output of this sequence cannot be written"))

    def _refuse(self, link: int, command: worker_pb2.StartLeg, error: TandemError) -> None:
        if not error.phase:
            error.phase = self._state.rules.phase
        if link in self._state.links:
            at_fault = isinstance(error, RequestError | InternalError)
            closing = Closing(Outcome.FAILED, error=error, retryable=not at_fault)
            self._state.links[link].events.append(closing.event(command.leg))
        self._state.ask(self._state.effects.leg_refused, link, command, error, self._state.now)

    def release(self, link: int, leg: int) -> None:
        """Prefill's verdict lets a decode leg's output go."""
        found = self._state.numbers.get((link, leg))
        if found is not None:  # else it has ended meanwhile
            found.release()
            if found.stage is LegStage.HELD:
                self._ends.leave(found)

    def cancel(self, link: int, leg: int, reason: str) -> None:
        """The router ends a leg, whatever it waits for."""
        found = self._state.numbers.get((link, leg))
        if found is not None:
            self._ends.end(found, Closing(Outcome.CANCELLED, reason=reason))

    # --- time, and the end of everything ---------------------------------------------------------

    def tick(self) -> None:
        """Time has passed: legs may be past their deadline. About once a second."""
        for leg in [leg for leg in self._state.open.values() if leg.deadline <= self._state.now]:
            self._ends.fail(leg, DeadlineError("the request's time ran out"))
        again, self._to_cancel = self._to_cancel, set()
        for request_id in sorted(again):
            held = self._state.open.get(request_id)
            if held is not None and held.engine_holds:
                self._state.ask(self._state.effects.cancel_engine, request_id)

    def drain(self) -> None:
        """Refuse what is new from now on."""
        self.draining = True

    def abandon(self, error: TandemError) -> None:
        """End everything that is still open."""
        self.draining = True
        for leg in list(self._state.open.values()):
            self._ends.fail(leg, error, retryable=self._steps.retryable(leg))

    def engine_gone(self, error: TandemError) -> None:
        """The engine died: it holds nothing any more, and says nothing of each request."""
        for leg in list(self._state.open.values()):
            if leg.engine_holds:
                self._settle(leg)
            leg.engine_holds, leg.parking = False, None
            retryable = self._steps.retryable(leg)
            self._ends.end(leg, Closing(Outcome.FAILED, "", error, retryable, worker_died=True))
            self._ends.close_if_let_go(leg)

    # --- what the engine brings ------------------------------------------------------------------

    def stepped(self, deltas: Sequence[Delta]) -> None:
        """What the engine brought since the last time, of each request in order. What nobody judges
        is written. Hooks are handed all of the step at once; their rulings go on (S0-029).
        """
        works: list[Work] = []
        for delta in deltas:
            leg = self._state.open.get(delta.request_id)
            if leg is None:
                continue
            self.tokens += len(delta.token_ids)
            if delta.times is not None:
                leg.engine_times = leg.engine_times or delta.times
                if delta.times is not leg.engine_times:
                    leg.engine_times.MergeFrom(delta.times)
                if not delta.token_ids and delta.end is None:
                    continue
            if delta.end is not None:
                leg.engine_holds, leg.let_go_at = False, self._state.now
                self._settle(leg)
                if delta.end in _NOTHING_LEFT:
                    leg.parking = None
            stage = leg.stage
            if stage is not _RUNNING and stage is not _WAITING:
                self._ends.close_if_let_go(leg)
                continue
            try:
                plain = delta.end is None and delta.logprobs is None and delta.kv is None
                if plain and leg.straight and stage is _RUNNING and delta.token_ids:
                    leg.show(leg.output.text(delta.token_ids), delta.token_ids, None)
                    if leg.parcel is not None:
                        self._shows.check_parcel(leg, leg.parcel)
                elif leg.replay is None:
                    self._steps.take(leg, delta, works)
                else:
                    self._steps.take_behind(leg, leg.replay, delta)
            except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
                self._ends.spoiled(leg, error)
        if works:
            self._state.ask(self._state.effects.judge_by_hooks, works)

    def _settle(self, leg: Leg) -> None:
        """The engine holds nothing of a leg any more."""
        now = self._state.now
        self._state.ledger.let_go(now, leg.stay, generated=leg.generated_token_seconds(now))

    def play_on(self, request_id: int) -> None:
        """A leg's turn has come, to replay more of its output."""
        leg = self._state.open.get(request_id)
        if leg is None or leg.replay is None or leg.stage is not _RUNNING:
            return
        try:
            self._steps.replay(leg, leg.replay)
        except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
            self._ends.spoiled(leg, error)

    # --- what hooks make of it -------------------------------------------------------------------

    def ruled(self, rulings: Sequence[Ruling]) -> None:
        """What hooks made of earlier steps. Those of one group that were given to them together
        come together.
        """
        staged: list[tuple[Leg, Piece | None, bool]] = []
        for ruling in rulings:
            leg = self._state.open.get(ruling.request_id)
            if leg is None or (leg.stage is not _RUNNING and leg.stage is not _RULING):
                continue
            if leg.replay is not None:
                leg.replay.unruled -= 1
                if not leg.replay.unruled:
                    self._steps.replayed(leg, leg.replay)
            end = leg.output.ruled(ruling)
            if ruling.error is not None:
                leg.closing = Closing(Outcome.FAILED, error=ruling.error)
                self._ends.move(leg, _ENDING)
            elif end is not None:
                self._steps.came_to_an_end(leg, end)
            staged.append((leg, ruling.piece, leg.stage is _ENDING))
        for leg, piece, last in staged:
            try:
                self._shows.write(leg, piece, last)
            except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
                self._ends.spoiled(leg, error)

    # --- what classifiers make of it -------------------------------------------------------------

    def judged(self, request_id: int, judgement: Judgement, scores: str) -> None:
        """What classifiers made of an output so far. `scores`: external ones as JSON, where the
        client asked for them.
        """
        leg = self._state.open.get(request_id)
        if leg is None or leg.guard is None or leg.stage not in OPEN:
            return
        leg.scores = scores
        try:
            self._shows.judged(leg, leg.guard, judgement)
        except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
            self._ends.spoiled(leg, error)

    def judge_failed(self, request_id: int, error: TandemError) -> None:
        """Hooks, classifiers or the audit log could not do their part for a leg: it fails
        closed.
        """
        leg = self._state.open.get(request_id)
        if leg is not None and leg.stage in OPEN:
            self._ends.fail(leg, error)


def _to_compute(command: worker_pb2.StartLeg, prompt_tokens: int) -> int:
    """Tokens of a leg's prompt that count as its worker's load."""
    if command.HasField("to_compute"):
        return min(command.to_compute, prompt_tokens)
    return prompt_tokens
