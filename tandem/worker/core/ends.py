"""How a leg ends: what is said of the end, and what is given back."""

from __future__ import annotations

from tandem.endings import Outcome
from tandem.errors import InternalError, TandemError
from tandem.v1 import worker_pb2
from tandem.worker.core.leg import NEXT, Closing, Leg, LegStage
from tandem.worker.core.state import CoreState


class Ends:
    """Acts on a CoreState, and notes there what is to be done."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def fail(self, leg: Leg, error: TandemError, *, retryable: bool = False) -> None:
        """End a leg with an error. `retryable`: another pair may run its sequence."""
        self.end(leg, Closing(Outcome.FAILED, error=error, retryable=retryable))

    def spoiled(self, leg: Leg, error: Exception) -> None:
        """What came for a leg, or what the leg came to, cannot be worked with."""
        failure = InternalError("the output of this sequence cannot be worked with")
        failure.__cause__ = error
        self.fail(leg, failure)

    def end(self, leg: Leg, closing: Closing) -> None:
        """Nothing more is shown of the leg. What ended it first counts, but a failure from outside
        also ends what is held for the router's release.
        """
        stage = leg.stage
        if stage is LegStage.LEAVING or stage is LegStage.CLOSED:
            return
        if closing.error is not None and not closing.error.phase:
            closing.error.phase = self._state.rules.phase
        if closing.by_itself:
            self._say_the_end(leg)
        else:
            leg.drop()
        if leg.parking is not None and not leg.engine_holds:
            self._state.ask(self._state.effects.cancel_engine, leg.request_id)
        if stage is not LegStage.HELD and stage is not LegStage.SILENCED:
            self.stop_judging(leg)
        leg.closing = closing
        if leg.held:
            self.move(leg, LegStage.HELD)
        else:
            self.leave(leg)

    def _say_the_end(self, leg: Leg) -> None:
        end = leg.output.end
        assert end is not None
        finish = self._state.rules.finish(leg, end)
        if leg.want_report or leg.want_cost:
            state = self._state
            taken = state.ledger.taken(state.now, leg.stay)
            leg.report(phase=state.rules.phase, worker=state.worker, now=state.now, taken=taken)
        if finish is not None:
            leg.finish(finish)
        if leg.says_made:
            over = worker_pb2.LegMade(over=True)
            leg.say_behind(worker_pb2.LegEvent(leg=leg.number, made=over))

    def stop_judging(self, leg: Leg) -> None:
        """Tell hooks and classifiers that the leg's output is over."""
        if leg.hooked or leg.guard is not None:
            self._state.ask(self._state.effects.stop_judging, leg.request_id)

    def leave(self, leg: Leg) -> None:
        """What is shown of the leg may leave: the leg closes once its engine has let go of it."""
        self.move(leg, LegStage.LEAVING)
        self.close_if_let_go(leg)

    def close_if_let_go(self, leg: Leg) -> None:
        """Close a leg that leaves, once the engine holds nothing of it."""
        if leg.stage is LegStage.LEAVING and not leg.engine_holds:
            self.move(leg, LegStage.CLOSED)
            self.forget(leg)
            leg.say_closed(self._state.rules.phase, self._state.now)
            self._state.ask(self._state.effects.leg_closed, leg, self._state.now)

    def forget(self, leg: Leg) -> None:
        """Give back what the open leg took."""
        self._state.ledger.end(self._state.now, leg.stay)
        del self._state.open[leg.request_id], self._state.numbers[leg.link, leg.number]
        leg.allotment.close()
        members = self._state.groups[leg.group]
        members.remove(leg)
        if not members:
            del self._state.groups[leg.group]

    def move(self, leg: Leg, stage: LegStage) -> None:
        """The one place where a leg changes its state."""
        before, leg.stage = leg.stage, stage
        assert stage in NEXT[before], f"{before} to {stage}"
        wanted = before is LegStage.WAITING or before is LegStage.RUNNING
        if wanted and stage is not LegStage.RUNNING and leg.engine_holds:
            self._state.ask(self._state.effects.cancel_engine, leg.request_id)
