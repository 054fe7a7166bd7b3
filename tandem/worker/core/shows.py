"""What is shown of a leg: rows, once classifiers and bounds let them pass."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.endings import Outcome
from tandem.errors import HookError, WorkerError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.hooks.classifiers.sequence_guard import Step as GuardStep
from tandem.hooks.piece import Piece
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.ends import Ends
from tandem.worker.core.leg import OPEN, Closing, Leg
from tandem.worker.core.outgoing import FRAME_BYTES, MAX_PARCEL_BYTES, Parcel
from tandem.worker.core.output import Finish
from tandem.worker.core.state import CoreState

_NOTHING = Piece("", ())


class Shows:
    """Acts on a CoreState, and notes there what is to be done."""

    def __init__(self, state: CoreState, ends: Ends) -> None:
        self._state = state
        self._ends = ends

    def write(self, leg: Leg, piece: Piece | None, last: bool) -> None:
        """`last`: nothing follows, so the leg ends, once classifiers have judged it."""
        if leg.stage not in OPEN:
            return
        if leg.guard is not None:
            self._write_guarded(leg, leg.guard, piece, last)
            return
        if self._state.rules.shows and piece is not None and (piece.text or piece.token_ids):
            self.show(leg, piece.text, piece.token_ids, piece.extras)
        if last and leg.closing is not None:
            if leg.parking is not None:
                self._say_parked(leg, leg.parking, piece or _NOTHING)
            self._ends.end(leg, leg.closing)

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
            self._ends.end(leg, leg.closing)
        elif piece is not None or last:
            self._past_guard(leg, guard, guard.push(piece or _NOTHING, last))

    def _past_guard(self, leg: Leg, guard: SequenceGuard, step: GuardStep) -> None:
        if not self._bound_guarded(leg, guard.held_tokens * leg.token_bytes):
            return
        if step.show is not None:
            shown, replaces = step.show, guard.blocked_by is not None
            self.show(leg, shown.text, shown.token_ids, shown.extras, replaces=replaces)
        if step.over:
            if guard.blocked_by is not None:
                leg.output.end = Finish("stop", guard.blocked_by, withheld=True)
                leg.output.completion_tokens = leg.asked_tokens
            self._ends.end(leg, leg.closing or Closing(Outcome.FINISHED))
        elif step.ask is not None and leg.stage in OPEN:
            end = leg.output.end
            reason = "" if end is None else end.reason
            output = leg.output
            leg.asked_tokens = output.ruled_tokens if leg.hooked else output.completion_tokens
            leg.asked_at = self._state.now
            self._state.ask(self._state.effects.ask_classifiers, leg.request_id, step.ask, reason)

    def show(
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
            self.check_parcel(leg, leg.parcel)

    def check_parcel(self, leg: Leg, parcel: Parcel) -> None:
        """The leg fails closed where it must hold more than it may."""
        most = self._state.rules.max_held_rows
        if leg.held and len(parcel.rows) > most:
            self._ends.fail(leg, HookError(f"prefill's verdict did not come within {most} chunks"))
        elif parcel.size > FRAME_BYTES:
            self._bound_parcel(leg, parcel)

    def _bound_parcel(self, leg: Leg, parcel: Parcel) -> None:
        """More of a leg's output waits than leaves at once."""
        if parcel.allotment is None:
            parcel.allotment = self._state.budget.allotment(
                lambda: self._state.too_large.append(leg)
            )
        fits = parcel.allotment.hold(parcel.size)
        if fits and parcel.size > MAX_PARCEL_BYTES:
            self._ends.fail(
                leg, WorkerError("more of the output waits for the router than may wait")
            )

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

    def judged(self, leg: Leg, guard: SequenceGuard, judgement: Judgement) -> None:
        leg.classifier_seconds += self._state.now - leg.asked_at
        again = None
        if leg.closing is not None and leg.closing.outcome is Outcome.FINISHED:
            # Only where nothing was shown, which the settings see to, and no hook ended it.
            again = None if leg.resumes else self._state.rules.regeneration(leg, judgement)
        if again is not None:
            again.spent_tokens = leg.generated_tokens
            overlay = common_pb2.Task(regeneration=again).SerializeToString()
            self._ends.end(leg, Closing(Outcome.REGENERATE, overlay=overlay))
        else:
            self._past_guard(leg, guard, guard.judged(judgement))
