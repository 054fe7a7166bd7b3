"""What an engine's steps bring of a leg, at once or replayed, on its way to hooks and to rows."""

from __future__ import annotations

from tandem.endings import Outcome
from tandem.engine.base import Delta, Ending
from tandem.errors import EngineError
from tandem.hooks.deferred import Work
from tandem.hooks.piece import Piece
from tandem.v1 import worker_pb2
from tandem.worker.core import replay
from tandem.worker.core.ends import Ends
from tandem.worker.core.leg import NEXT, Closing, Leg, LegStage
from tandem.worker.core.output import Finish
from tandem.worker.core.replay import Replay
from tandem.worker.core.shows import Shows
from tandem.worker.core.state import CoreState


class EngineSteps:
    """Acts on a CoreState, and notes there what is to be done."""

    def __init__(self, state: CoreState, ends: Ends, shows: Shows) -> None:
        self._state = state
        self._ends = ends
        self._shows = shows

    def take(self, leg: Leg, delta: Delta, works: list[Work]) -> None:
        """Take in what the engine brought of a leg. What hooks are to judge is added to `works`."""
        piece = self._cut(leg, delta)
        last = leg.output.cut_end
        if piece is None:
            self._shows.write(leg, None, True)
        elif leg.hooked:
            generated = leg.output.completion_tokens
            works.append(Work(leg.request_id, piece, last is not None, generated))
        else:
            if last is not None:
                self.came_to_an_end(leg, last)
            self._shows.write(leg, piece, last is not None)

    def take_behind(self, leg: Leg, replay: Replay, delta: Delta) -> None:
        """What the engine brings of a leg waits until all before it was replayed."""
        waiting = leg.stage is LegStage.WAITING
        replay.behind(delta, first=waiting)
        if waiting:
            leg.wait_in_parcel()
            self.replay(leg, replay)

    def replay(self, leg: Leg, replay: Replay) -> None:
        """Replay some more steps. Hooks rule on them before they are given the next."""
        works: list[Work] = []
        for delta in replay.next():
            if leg.stage is LegStage.WAITING or leg.stage is LegStage.RUNNING:
                self.take(leg, delta, works)
        replay.unruled = len(works)
        if works:
            self._state.ask(self._state.effects.judge_by_hooks, works)
        else:
            self.replayed(leg, replay)

    def replayed(self, leg: Leg, replay: Replay) -> None:
        """Hooks have ruled on the steps that were replayed last."""
        if replay.deltas and leg.stage is LegStage.RUNNING:
            self._state.ask(self._state.effects.wait_turn, leg.request_id)
        else:
            leg.replay, leg.straight = None, replay.straight and not leg.says_made

    def _cut(self, leg: Leg, delta: Delta) -> Piece | None:
        """What a delta brought; None: the leg has ended with it."""
        if delta.kv is not None:
            leg.kv = delta.kv
            trace_id = leg.trace_id if leg.parent_span else ""
            self._state.ask(self._state.effects.count_transfer, delta.kv, trace_id)
        if delta.cached_tokens:
            # Of a sequence that goes on here, more may be cached than its prompt.
            leg.cached_tokens = min(delta.cached_tokens, leg.prompt_tokens)
        if delta.end is Ending.CANCELLED or delta.end is Ending.FAILED:
            leg.closing = self._ended_by_engine(leg, delta)
            self._ends.move(leg, LegStage.ENDING)
            return None
        if leg.stage is LegStage.WAITING:
            self._arrived(leg, delta)
        if leg.says_made and delta.end is None:
            self._say_made(leg, delta)
        if delta.prompt_logprobs is not None:
            leg.show_prompt(delta.prompt_logprobs)
            assert leg.parcel is not None
            self._shows.check_parcel(leg, leg.parcel)
        piece = leg.output.cut(delta)
        if leg.hooked and leg.output.cut_end is not None:
            self._ends.move(leg, LegStage.RULING)
        return piece

    def _arrived(self, leg: Leg, delta: Delta) -> None:
        self._ends.move(leg, LegStage.RUNNING)
        leg.first_at = now = self._state.now
        self._state.ledger.weigh(now, leg.stay, 1 if self._state.rules.shows else 0)
        started = self._state.rules.started(delta.kv)
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
            Outcome.FAILED, error=error, retryable=delta.retryable and self.retryable(leg)
        )

    def came_to_an_end(self, leg: Leg, end: Finish) -> None:
        """Hooks have ruled on all of a leg's output."""
        leg.output.end = end
        verdict = self._state.rules.verdict(leg, end)
        if verdict is not None:
            # Prefill's lets decode's output go, which comes after what prefill shows of the prompt.
            say = leg.say if self._state.rules.shows else leg.say_behind
            say(worker_pb2.LegEvent(leg=leg.number, verdict=verdict))
        leg.closing = self._state.rules.closing(end)
        self._ends.move(leg, LegStage.ENDING)
        if end.terminated and self._state.rules.shows:
            self._silence_siblings(leg)

    def _silence_siblings(self, leg: Leg) -> None:
        """The other outputs of a terminated request show nothing more. The router, told of the
        terminate by the verdict, ends their sequences and cancels their legs.
        """
        for sibling in self._state.groups[leg.group]:
            if sibling is not leg and LegStage.SILENCED in NEXT[sibling.stage]:
                sibling.closing = None
                if sibling.held:
                    sibling.drop()
                self._ends.stop_judging(sibling)
                self._ends.move(sibling, LegStage.SILENCED)

    def retryable(self, leg: Leg) -> bool:
        """Whether another pair may run the leg's sequence: nothing of it can have been shown."""
        return leg.first_at is None or not self._state.rules.shows
