"""The worker's core: events in, actions out. No I/O, clocks, asyncio or user code inside.

docs/design/0012-the-worker-core.md says why. Every leg ends with exactly one LegClosed, unless its
router has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tandem.byte_budget import ByteBudget
from tandem.endings import Outcome
from tandem.engine.base import Delta, Ending
from tandem.errors import (
    DeadlineError,
    DrainingError,
    EngineError,
    HookError,
    InternalError,
    QueueFullError,
    RequestError,
    TandemError,
    WorkerError,
)
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.hooks.classifiers.sequence_guard import Step as GuardStep
from tandem.hooks.deferred import SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core import actions, events, replay
from tandem.worker.core.actions import Action
from tandem.worker.core.events import Event
from tandem.worker.core.leg import NEXT, Closing, Leg, Stage
from tandem.worker.core.outgoing import (
    ALTERNATIVE_BYTES,
    FRAME_BYTES,
    MAX_BACKLOG_BYTES,
    MAX_PARCEL_BYTES,
    TOKEN_BYTES,
    Outgoing,
    Parcel,
)
from tandem.worker.core.output import Finish
from tandem.worker.core.replay import Replay
from tandem.worker.core.rules import PhaseRules

_WAITING, _RUNNING, _RULING, _ENDING = Stage.WAITING, Stage.RUNNING, Stage.RULING, Stage.ENDING
_OPEN = _WAITING, _RUNNING, _RULING, _ENDING
"""What is shown of a leg may yet change."""
_NOTHING_LEFT = Ending.CANCELLED, Ending.FAILED
"""An engine keeps no KV of an output that ended so."""
_NOTHING = Piece("", ())


def no_memory() -> WorkerError:
    """What the leg ends with that holds the most, where output finds no room."""
    return WorkerError("this worker has no memory for more of the output")


class Core:
    """All open legs of a worker."""

    def __init__(
        self,
        *,
        rules: PhaseRules,
        worker: str,
        max_legs: int,
        hooked: bool,
        budget: ByteBudget,
    ) -> None:
        """`worker`: its name, for reports. `hooked`: output passes hooks before it is shown.
        `budget`: of all bytes that the worker holds.
        """
        self._rules = rules
        self._worker = worker
        self.max_legs = max_legs
        """The most that are open at once."""
        self._hooked = hooked
        self.budget = budget
        self._now = 0.0
        self._actions: list[Action] = []
        self._links: dict[int, Outgoing] = {}
        self._open: dict[int, Leg] = {}
        self._too_large: list[Leg] = []
        """To be ended once what happened is taken in: the engine may have let go of them in it."""
        self._numbers: dict[tuple[int, int], Leg] = {}
        self._groups: dict[tuple[int, int, int], list[Leg]] = {}
        self._to_cancel: set[int] = set()
        """Requests that the engine could not be told to let go of."""
        self.draining = False
        self.tokens = 0
        """Delivered by the engine, for legs that were open."""
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.LinkUp: self._link_up,
            events.LinkDown: self._link_down,
            events.Start: self._start,
            events.Unreadable: self._unreadable,
            events.NotBegun: self._not_begun,
            events.NotCancelled: self._not_cancelled,
            events.Unsendable: self._unsendable,
            events.Release: self._release,
            events.Cancel: self._cancel,
            events.Stepped: self._stepped,
            events.PlayOn: self._play_on,
            events.Ruled: self._ruled,
            events.Judged: self._judged,
            events.JudgeFailed: self._judge_failed,
            events.Tick: self._tick,
            events.Drain: self._drain,
            events.Abandon: self._abandon,
            events.EngineGone: self._engine_gone,
        }

    def __len__(self) -> int:
        return len(self._open)

    @property
    def legs(self) -> Iterable[Leg]:
        """Those that are open, to look at."""
        return self._open.values()

    def outgoing(self, link: int) -> Outgoing:
        """What waits for a router whose link is up."""
        return self._links[link]

    def handle(self, now: float, batch: Iterable[Event]) -> list[Action]:
        """Take in what happened at `now`, in order; returns what is to be done, in order."""
        self._now, self._actions = now, []
        for event in batch:
            self._handlers[type(event)](event)
        for link, outgoing in self._links.items():
            if outgoing.backlog > FRAME_BYTES and not self._bound(outgoing):
                self._give_up(link)
            elif outgoing.waits:
                self._actions.append(actions.Send(link))
        if self._too_large:
            self._end_too_large()
        return self._actions

    def _bound(self, outgoing: Outgoing) -> bool:
        """Whether what waits for a router that may not read can wait."""
        fits = outgoing.allotment.grow(outgoing.backlog - outgoing.allotment.size)
        return fits and outgoing.backlog <= MAX_BACKLOG_BYTES

    def _give_up(self, link: int) -> None:
        reason = "the router does not read what it asked for"
        self._actions.append(actions.GiveUp(link, reason))

    def _end_too_large(self) -> None:
        """There was no memory for more output, and these held the most. They may be over."""
        legs, self._too_large = self._too_large, []
        for leg in legs:
            if parcel := leg.waiting:
                parcel.spoil(no_memory())
                if leg.stage is Stage.LEAVING:
                    leg.closing = Closing(Outcome.FAILED, error=no_memory())
            self._fail(leg, no_memory())
            self._actions.append(actions.Send(leg.link))

    # --- routers ---------------------------------------------------------------------------------

    def _link_up(self, event: events.LinkUp) -> None:
        link = event.link
        self._links[link] = Outgoing(self.budget.allotment(lambda: self._give_up(link)))

    def _link_down(self, event: events.LinkDown) -> None:
        if outgoing := self._links.pop(event.link, None):
            outgoing.gone()
        for leg in [leg for leg in self._open.values() if leg.link == event.link]:
            self._end(leg, Closing(Outcome.CANCELLED, reason="router_lost"))

    def _start(self, event: events.Start) -> None:
        link, command, task, request = event.link, event.command, event.task, event.request
        if not self._may_use(link, command.leg):
            return
        if self.draining:
            self._refuse(link, command, DrainingError("this worker is shutting down"))
            return
        if len(self._open) >= self.max_legs:
            full = QueueFullError(f"this worker runs {self.max_legs} sequences already")
            self._refuse(link, command, full)
            return
        allotment = self.budget.allotment(lambda: self._too_large.append(leg))
        try:
            allotment.admit(event.own_bytes)
        except QueueFullError as error:
            allotment.close()
            self._refuse(link, command, error)
            return
        # Prefill's hooks have judged the first token of a sequence that goes on here.
        fresh = self._rules.shows or not task.HasField("resume")
        hooked = self._hooked and fresh and not command.canary
        guard = None if command.canary else self._rules.guard(streaming=task.streaming)
        judged = hooked or guard is not None
        straight = self._rules.shows and not judged and not event.output.cuts
        replayed = None
        if self._rules.shows and request.made:
            replayed = Replay(task.resume, request.request_id, straight=straight)
        leg = Leg(
            request_id=request.request_id,
            link=link,
            number=command.leg,
            outgoing=self._links[link],
            allotment=allotment,
            destination=command.destination,
            sequence=command.sequence,
            output_index=command.output_index,
            trace_id=task.trace_id,
            parent_span=command.parent_span,
            prompt_tokens=len(request.token_ids),
            to_compute=_to_compute(command, len(request.token_ids)),
            regenerations=task.regeneration.count,
            spent_tokens=task.regeneration.spent_tokens,
            want_text=task.want_text,
            want_token_ids=task.want_token_ids,
            want_logprobs=task.sampling.HasField("logprobs"),
            want_report=task.want_report,
            started_at=self._now,
            deadline=self._now + command.timeout_ms / 1000,
            output=event.output,
            guard=guard,
            token_bytes=TOKEN_BYTES + ALTERNATIVE_BYTES * task.sampling.logprobs,
            straight=straight and replayed is None and not command.say_made,
            hooked=hooked,
            says_made=command.say_made,
            obstacle=event.obstacle,
            replay=replayed,
            canary=command.canary,
            parking=event.parking,
            resumes=bool(command.task_digest),
        )
        if command.hold_output:
            leg.hold()
        self._open[leg.request_id] = self._numbers[link, leg.number] = leg
        self._groups.setdefault(leg.group, []).append(leg)
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
        self._actions.append(actions.Begin(request, task, command, info, leg.to_compute, known))

    def _unreadable(self, event: events.Unreadable) -> None:
        if self._may_use(event.link, event.command.leg):
            self._refuse(event.link, event.command, event.error)

    def _may_use(self, link: int, number: int) -> bool:
        """Whether a router that is there may begin a leg of that number."""
        if (link, number) in self._numbers:
            self._actions.append(actions.GiveUp(link, f"leg {number} is open already"))
            return False
        return link in self._links

    def _not_begun(self, event: events.NotBegun) -> None:
        leg = self._open.get(event.request_id)
        if leg is not None:
            self._forget(leg)
            self._refuse(leg.link, event.command, event.error)

    def _not_cancelled(self, event: events.NotCancelled) -> None:
        self._to_cancel.add(event.request_id)

    def _unsendable(self, event: events.Unsendable) -> None:
        where = event.link, event.destination, event.sequence
        for leg in list(self._open.values()):
            if (leg.link, leg.destination, leg.sequence) == where:
                self._fail(leg, InternalError("the output of this sequence cannot be written"))

    def _refuse(self, link: int, command: worker_pb2.StartLeg, error: TandemError) -> None:
        if not error.phase:
            error.phase = self._rules.phase
        if link in self._links:
            at_fault = isinstance(error, RequestError | InternalError)
            closing = Closing(Outcome.FAILED, error=error, retryable=not at_fault)
            self._links[link].events.append(closing.event(command.leg))
        self._actions.append(actions.LegRefused(link, command, error, self._now))

    def _release(self, event: events.Release) -> None:
        leg = self._numbers.get((event.link, event.leg))
        if leg is not None:  # else it has ended meanwhile
            leg.release()
            if leg.stage is Stage.HELD:
                self._leave(leg)

    def _cancel(self, event: events.Cancel) -> None:
        leg = self._numbers.get((event.link, event.leg))
        if leg is not None:
            self._end(leg, Closing(Outcome.CANCELLED, reason=event.reason))

    # --- time, and the end of everything ---------------------------------------------------------

    def _tick(self, _: events.Tick) -> None:
        for leg in [leg for leg in self._open.values() if leg.deadline <= self._now]:
            self._fail(leg, DeadlineError("the request's time ran out"))
        again, self._to_cancel = self._to_cancel, set()
        for request_id in sorted(again):
            held = self._open.get(request_id)
            if held is not None and held.engine_holds:
                self._actions.append(actions.CancelEngine(request_id))

    def _drain(self, _: events.Drain) -> None:
        self.draining = True

    def _abandon(self, event: events.Abandon) -> None:
        self.draining = True
        for leg in list(self._open.values()):
            self._fail(leg, event.error, retryable=self._retryable(leg))

    def _engine_gone(self, event: events.EngineGone) -> None:
        for leg in list(self._open.values()):
            leg.engine_holds, leg.parking = False, None
            retryable = self._retryable(leg)
            self._end(leg, Closing(Outcome.FAILED, "", event.error, retryable, worker_died=True))
            self._close_if_let_go(leg)

    def _retryable(self, leg: Leg) -> bool:
        """Another pair may run it: nothing of it can have been shown."""
        return leg.first_at is None or not self._rules.shows

    # --- what the engine brings ------------------------------------------------------------------

    def _stepped(self, event: events.Stepped) -> None:
        """Write what nobody judges. Hooks are handed all of the step at once; their rulings go on
        (S0-029).
        """
        works: list[Work] = []
        for delta in event.deltas:
            leg = self._open.get(delta.request_id)
            if leg is None:
                continue
            self.tokens += len(delta.token_ids)
            if delta.end is not None:
                leg.engine_holds = False
                if delta.end in _NOTHING_LEFT:
                    leg.parking = None
            stage = leg.stage
            if stage is not _RUNNING and stage is not _WAITING:
                self._close_if_let_go(leg)
                continue
            try:
                plain = delta.end is None and delta.logprobs is None and delta.kv is None
                if plain and leg.straight and stage is _RUNNING and delta.token_ids:
                    leg.show(leg.output.text(delta.token_ids), delta.token_ids, None)
                    if leg.parcel is not None:
                        self._check_parcel(leg, leg.parcel)
                elif leg.replay is None:
                    self._take(leg, delta, works)
                else:
                    self._take_behind(leg, leg.replay, delta)
            except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
                self._spoiled(leg, error)
        if works:
            self._actions.append(actions.JudgeByHooks(works))

    def _take_behind(self, leg: Leg, replay: Replay, delta: Delta) -> None:
        """What the engine brings of a leg waits until all before it was replayed."""
        waiting = leg.stage is _WAITING
        replay.behind(delta, first=waiting)
        if waiting:
            leg.wait_in_parcel()
            self._replay(leg, replay)

    def _play_on(self, event: events.PlayOn) -> None:
        leg = self._open.get(event.request_id)
        if leg is None or leg.replay is None or leg.stage is not _RUNNING:
            return
        try:
            self._replay(leg, leg.replay)
        except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
            self._spoiled(leg, error)

    def _replay(self, leg: Leg, replay: Replay) -> None:
        """Some more of it. Hooks rule on that before they are given the next."""
        works: list[Work] = []
        for delta in replay.next():
            if leg.stage is _WAITING or leg.stage is _RUNNING:
                self._take(leg, delta, works)
        replay.unruled = len(works)
        if works:
            self._actions.append(actions.JudgeByHooks(works))
        else:
            self._replayed(leg, replay)

    def _replayed(self, leg: Leg, replay: Replay) -> None:
        """What was replayed last is ruled on."""
        if replay.deltas and leg.stage is _RUNNING:
            self._actions.append(actions.WaitTurn(leg.request_id))
        else:
            leg.replay, leg.straight = None, replay.straight and not leg.says_made

    def _take(self, leg: Leg, delta: Delta, works: list[Work]) -> None:
        """What hooks are to judge of it is added to `works`."""
        piece = self._cut(leg, delta)
        last = leg.output.cut_end
        if piece is None:
            self._write(leg, None, True)
        elif leg.hooked:
            generated = leg.output.completion_tokens
            works.append(Work(leg.request_id, piece, last is not None, generated))
        else:
            if last is not None:
                self._came_to_an_end(leg, last)
            self._write(leg, piece, last is not None)

    def _cut(self, leg: Leg, delta: Delta) -> Piece | None:
        """What a delta brought; None: the leg has ended with it."""
        if delta.kv is not None:
            leg.kv = delta.kv
            trace_id = leg.trace_id if leg.parent_span else ""
            self._actions.append(actions.CountTransfer(delta.kv, trace_id))
        if delta.cached_tokens:
            # Of a sequence that goes on here, more may be cached than its prompt.
            leg.cached_tokens = min(delta.cached_tokens, leg.prompt_tokens)
        if delta.end is Ending.CANCELLED or delta.end is Ending.FAILED:
            leg.closing = self._ended_by_engine(leg, delta)
            self._move(leg, _ENDING)
            return None
        if leg.stage is _WAITING:
            self._arrived(leg, delta)
        if leg.says_made and delta.end is None:
            self._say_made(leg, delta)
        if delta.prompt_logprobs is not None:
            leg.show_prompt(delta.prompt_logprobs)
            assert leg.parcel is not None
            self._check_parcel(leg, leg.parcel)
        piece = leg.output.cut(delta)
        if leg.hooked and leg.output.cut_end is not None:
            self._move(leg, _RULING)
        return piece

    def _arrived(self, leg: Leg, delta: Delta) -> None:
        self._move(leg, _RUNNING)
        leg.first_at = self._now
        started = self._rules.started(delta.kv)
        if started is not None:
            leg.say(worker_pb2.LegEvent(leg=leg.number, started=started))

    def _say_made(self, leg: Leg, delta: Delta) -> None:
        """The engine's last step is left out: whoever goes on makes it again, and so comes to the
        same end.
        """
        if leg.obstacle:
            made = worker_pb2.LegMade(obstacle=leg.obstacle)
            leg.say(worker_pb2.LegEvent(leg=leg.number, made=made))
            leg.says_made = False
        elif delta.token_ids:
            leg.say(replay.said(leg.number, delta))

    def _ended_by_engine(self, leg: Leg, delta: Delta) -> Closing:
        if delta.end is Ending.CANCELLED:
            return Closing(Outcome.CANCELLED)
        error = delta.error or EngineError("the engine gave no reason")
        return Closing(
            Outcome.FAILED, error=error, retryable=delta.retryable and self._retryable(leg)
        )

    # --- what hooks make of it -------------------------------------------------------------------

    def _ruled(self, event: events.Ruled) -> None:
        staged: list[tuple[Leg, Piece | None, bool]] = []
        for ruling in event.rulings:
            leg = self._open.get(ruling.request_id)
            if leg is None or (leg.stage is not _RUNNING and leg.stage is not _RULING):
                continue
            if leg.replay is not None:
                leg.replay.unruled -= 1
                if not leg.replay.unruled:
                    self._replayed(leg, leg.replay)
            end = leg.output.ruled(ruling)
            if ruling.error is not None:
                leg.closing = Closing(Outcome.FAILED, error=ruling.error)
                self._move(leg, _ENDING)
            elif end is not None:
                self._came_to_an_end(leg, end)
            staged.append((leg, ruling.piece, leg.stage is _ENDING))
        for leg, piece, last in staged:
            try:
                self._write(leg, piece, last)
            except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
                self._spoiled(leg, error)

    def _came_to_an_end(self, leg: Leg, end: Finish) -> None:
        """Hooks have ruled on all of a leg's output."""
        leg.output.end = end
        verdict = self._rules.verdict(leg, end)
        if verdict is not None:
            # Prefill's lets decode's output go, which comes after what prefill shows of the prompt.
            say = leg.say if self._rules.shows else leg.say_behind
            say(worker_pb2.LegEvent(leg=leg.number, verdict=verdict))
        leg.closing = self._rules.closing(end)
        self._move(leg, _ENDING)
        if end.terminated and self._rules.shows:
            self._silence_siblings(leg)

    def _silence_siblings(self, leg: Leg) -> None:
        """The other outputs of a terminated request show nothing more. The router, told of the
        terminate by the verdict, ends their sequences and cancels their legs.
        """
        for sibling in self._groups[leg.group]:
            if sibling is not leg and Stage.SILENCED in NEXT[sibling.stage]:
                sibling.closing = None
                if sibling.held:
                    sibling.drop()
                self._stop_judging(sibling)
                self._move(sibling, Stage.SILENCED)

    # --- what is shown of it ---------------------------------------------------------------------

    def _write(self, leg: Leg, piece: Piece | None, last: bool) -> None:
        """`last`: nothing follows, so the leg ends, once classifiers have judged it."""
        if leg.stage not in _OPEN:
            return
        if leg.guard is not None:
            self._write_guarded(leg, leg.guard, piece, last)
            return
        if self._rules.shows and piece is not None and (piece.text or piece.token_ids):
            self._show(leg, piece.text, piece.token_ids, piece.extras)
        if last and leg.closing is not None:
            if leg.parking is not None:
                self._say_parked(leg, leg.parking, piece or _NOTHING)
            self._end(leg, leg.closing)

    def _say_parked(self, leg: Leg, parking: worker_pb2.LegParked, piece: Piece) -> None:
        """Hooks have ruled on the first token: where they did not end the request, whoever has the
        router's word may have the KV.
        """
        end = leg.output.end
        if end is not None and not end.terminated:
            parking.token_ids.extend(piece.token_ids)
            if leg.want_logprobs:
                parking.logprobs.extend([logprob for logprob, _ in piece.extras or ()])
            leg.say(worker_pb2.LegEvent(leg=leg.number, parked=parking))
            leg.parking = None

    def _write_guarded(
        self, leg: Leg, guard: SequenceGuard, piece: Piece | None, last: bool
    ) -> None:
        if last and leg.closing is not None and not leg.closing.by_itself:
            self._end(leg, leg.closing)
        elif piece is not None or last:
            self._past_guard(leg, guard, guard.push(piece or _NOTHING, last))

    def _past_guard(self, leg: Leg, guard: SequenceGuard, step: GuardStep) -> None:
        if not self._bound_guarded(leg, guard.held_tokens * leg.token_bytes):
            return
        if step.show is not None:
            shown, replaces = step.show, guard.blocked_by is not None
            self._show(leg, shown.text, shown.token_ids, shown.extras, replaces=replaces)
        if step.over:
            if guard.blocked_by is not None:
                leg.output.end = Finish("stop", guard.blocked_by, withheld=True)
                leg.output.completion_tokens = leg.asked_tokens
            self._end(leg, leg.closing or Closing(Outcome.FINISHED))
        elif step.ask is not None and leg.stage in _OPEN:
            end = leg.output.end
            reason = "" if end is None else end.reason
            output = leg.output
            leg.asked_tokens = output.ruled_tokens if leg.hooked else output.completion_tokens
            self._actions.append(actions.AskClassifiers(leg.request_id, step.ask, reason))

    def _show(
        self,
        leg: Leg,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        """Let the client have a row, now or once it may."""
        leg.show(text, token_ids, logprobs, replaces=replaces)
        if leg.parcel is not None:
            self._check_parcel(leg, leg.parcel)

    def _check_parcel(self, leg: Leg, parcel: Parcel) -> None:
        """The leg fails closed where it must hold more than it may."""
        most = self._rules.max_held_rows
        if leg.held and len(parcel.rows) > most:
            self._fail(leg, HookError(f"prefill's verdict did not come within {most} chunks"))
        elif parcel.size > FRAME_BYTES:
            self._bound_parcel(leg, parcel)

    def _bound_parcel(self, leg: Leg, parcel: Parcel) -> None:
        """More of a leg's output waits than leaves at once."""
        if parcel.allotment is None:
            parcel.allotment = self.budget.allotment(lambda: self._too_large.append(leg))
        fits = parcel.allotment.grow(parcel.size - parcel.allotment.size)
        if fits and parcel.size > MAX_PARCEL_BYTES:
            self._fail(leg, WorkerError("more of the output waits for the router than may wait"))

    def _bound_guarded(self, leg: Leg, held: int) -> bool:
        """Count what classifiers hold of a leg, a frame's worth at once. False: there is no memory,
        and the leg has failed.
        """
        change = held - leg.guarded_bytes
        if change > FRAME_BYTES:
            leg.guarded_bytes = held
            return leg.allotment.grow(change)
        if change < 0:
            leg.guarded_bytes = held
            leg.allotment.give_back(-change)
        return True

    def _judged(self, event: events.Judged) -> None:
        leg = self._open.get(event.request_id)
        if leg is None or leg.guard is None or leg.stage not in _OPEN:
            return
        leg.scores = event.scores
        try:
            self._take_judgement(leg, leg.guard, event.judgement)
        except Exception as error:  # noqa: BLE001 - its own data: no other leg may suffer
            self._spoiled(leg, error)

    def _take_judgement(self, leg: Leg, guard: SequenceGuard, judgement: Judgement) -> None:
        again = None
        if leg.closing is not None and leg.closing.outcome is Outcome.FINISHED:
            # Only where nothing was shown, which the settings see to, and no hook ended it.
            again = None if leg.resumes else self._rules.regeneration(leg, judgement)
        if again is not None:
            again.spent_tokens = leg.generated_tokens
            overlay = common_pb2.Task(regeneration=again).SerializeToString()
            self._end(leg, Closing(Outcome.REGENERATE, overlay=overlay))
        else:
            self._past_guard(leg, guard, guard.judged(judgement))

    def _judge_failed(self, event: events.JudgeFailed) -> None:
        leg = self._open.get(event.request_id)
        if leg is not None and leg.stage in _OPEN:
            self._fail(leg, event.error)

    # --- how a leg ends --------------------------------------------------------------------------

    def _fail(self, leg: Leg, error: TandemError, *, retryable: bool = False) -> None:
        self._end(leg, Closing(Outcome.FAILED, error=error, retryable=retryable))

    def _spoiled(self, leg: Leg, error: Exception) -> None:
        """What came for a leg, or what the leg came to, cannot be worked with."""
        failure = InternalError("the output of this sequence cannot be worked with")
        failure.__cause__ = error
        self._fail(leg, failure)

    def _end(self, leg: Leg, closing: Closing) -> None:
        """Nothing more is shown of the leg. What ended it first counts, but a failure from outside
        also ends what is held for the router's release.
        """
        stage = leg.stage
        if stage is Stage.LEAVING or stage is Stage.CLOSED:
            return
        if closing.error is not None and not closing.error.phase:
            closing.error.phase = self._rules.phase
        if closing.by_itself:
            self._say_the_end(leg)
        else:
            leg.drop()
        if leg.parking is not None and not leg.engine_holds:
            self._actions.append(actions.CancelEngine(leg.request_id))
        if stage is not Stage.HELD and stage is not Stage.SILENCED:
            self._stop_judging(leg)
        leg.closing = closing
        if leg.held:
            self._move(leg, Stage.HELD)
        else:
            self._leave(leg)

    def _say_the_end(self, leg: Leg) -> None:
        end = leg.output.end
        assert end is not None
        finish = self._rules.finish(leg, end)
        leg.report(phase=self._rules.phase, worker=self._worker, now=self._now)
        if finish is not None:
            leg.finish(finish)
        if leg.says_made:
            over = worker_pb2.LegMade(over=True)
            leg.say_behind(worker_pb2.LegEvent(leg=leg.number, made=over))

    def _stop_judging(self, leg: Leg) -> None:
        if leg.hooked or leg.guard is not None:
            self._actions.append(actions.StopJudging(leg.request_id))

    def _leave(self, leg: Leg) -> None:
        self._move(leg, Stage.LEAVING)
        self._close_if_let_go(leg)

    def _close_if_let_go(self, leg: Leg) -> None:
        if leg.stage is Stage.LEAVING and not leg.engine_holds:
            self._move(leg, Stage.CLOSED)
            self._forget(leg)
            leg.say_closed()
            self._actions.append(actions.LegClosed(leg, self._now))

    def _forget(self, leg: Leg) -> None:
        del self._open[leg.request_id], self._numbers[leg.link, leg.number]
        leg.allotment.close()
        members = self._groups[leg.group]
        members.remove(leg)
        if not members:
            del self._groups[leg.group]

    def _move(self, leg: Leg, stage: Stage) -> None:
        """The one place where a leg changes its state."""
        before, leg.stage = leg.stage, stage
        assert stage in NEXT[before], f"{before} to {stage}"
        wanted = before is _WAITING or before is _RUNNING
        if wanted and stage is not _RUNNING and leg.engine_holds:
            self._actions.append(actions.CancelEngine(leg.request_id))


def _to_compute(command: worker_pb2.StartLeg, prompt_tokens: int) -> int:
    """Tokens of a leg's prompt that count as its worker's load."""
    if command.HasField("to_compute"):
        return min(command.to_compute, prompt_tokens)
    return prompt_tokens
