"""From an engine's steps to rows for clients: judged by hooks, then by classifiers, then written.

Everything here runs on the event loop, and nothing waits: what is judged elsewhere comes back by
`on_rulings` and `on_judgement`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tandem.engine.base import Delta, Ending, Step
from tandem.errors import EngineError, HookError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import Step as GuardStep
from tandem.hooks.deferred import Ruling, Work
from tandem.hooks.piece import Piece
from tandem.v1 import common_pb2
from tandem.worker.classifying import Guarded
from tandem.worker.judges import Judges
from tandem.worker.leg import Closing, Leg
from tandem.worker.legs import Legs
from tandem.worker.link import RouterLink
from tandem.worker.output import End
from tandem.worker.phases import PhaseRules
from tandem.worker.tally import WorkerTally

MAX_HELD_ROWS = 1000
"""Of decode's output that waits for prefill's verdict."""

Staged = tuple[Leg, Piece | None]
"""What is to be written of a leg, once all of its step was judged."""


class Pipeline:
    """All open legs' output, on its way out."""

    def __init__(
        self, legs: Legs, *, rules: PhaseRules, judges: Judges, tally: WorkerTally
    ) -> None:
        self._legs = legs
        self._rules = rules
        self._deferred = judges.deferred
        self._classifying = judges.classifying
        self._tally = tally

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
            leg = self._legs.find(delta.request_id)
            if leg is None:
                continue
            tokens += len(delta.token_ids)
            links.add(leg.link)
            if delta.end is not None:
                leg.settled = True
            if leg.over or leg.closing is not None or leg.output.over:
                self._legs.close_when_done(leg)
            elif not self._arrived(leg, delta):
                staged.append((leg, None))
            elif self._deferred is None:
                staged.append((leg, self._judge(leg, delta)))
            else:
                work.append(self._handed_over(leg, delta))
        self._write(staged, links)
        self._tally.step(tokens, time.perf_counter() - began)
        if work and self._deferred is not None:
            self._deferred.submit(work)

    def _handed_over(self, leg: Leg, delta: Delta) -> Work:
        """What hooks elsewhere are to judge of a delta."""
        piece = leg.output.cut(delta)
        if leg.output.over:
            self._legs.cancel_engine(leg)  # a stop string may end it before the engine does
        return Work(leg.request_id, piece, leg.output.over)

    def on_rulings(self, rulings: Sequence[Ruling]) -> None:
        """What hooks that judge elsewhere made of earlier steps."""
        staged: list[Staged] = []
        for ruling in rulings:
            leg = self._legs.find(ruling.request_id)
            if leg is not None and not leg.over and leg.closing is None:
                staged.append((leg, self._ruled(leg, ruling)))
        self._write(staged, {leg.link for leg, _ in staged})

    def _arrived(self, leg: Leg, delta: Delta) -> bool:
        """Whether the delta brought output; else the leg has ended with it."""
        if delta.kv is not None:
            leg.kv = delta.kv
            self._tally.kv(delta.kv, trace_id=leg.trace_id if leg.parent_span else "")
        if delta.cached_tokens:
            leg.cached_tokens = delta.cached_tokens
        if delta.end is Ending.CANCELLED or delta.end is Ending.FAILED:
            leg.closing = _ended_by_engine(leg, delta)
            return False
        if not leg.first_at:
            leg.first_at = self._legs.now()
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
        output.deferred_seconds += ruling.seconds
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
            self._legs.mute_siblings(leg)

    def _write(self, staged: Sequence[Staged], links: Iterable[RouterLink]) -> None:
        for leg, piece in staged:
            if not leg.muted:
                self._write_one(leg, piece)
        for link in links:
            link.notify()

    def _write_one(self, leg: Leg, piece: Piece | None) -> None:
        closing = leg.closing
        if leg.guarded is not None and (closing is None or closing.by_itself):
            if piece is not None or closing is not None:
                step = leg.guarded.guard.push(piece or Piece("", ()), closing is not None)
                self._past_guard(leg, leg.guarded, step)
            return
        if piece is not None and self._rules.shows:
            self._show(leg, piece)
        if leg.closing is not None:
            self._legs.end(leg, leg.closing)

    def _show(self, leg: Leg, piece: Piece) -> None:
        leg.show(piece)
        if leg.held is not None and len(leg.held.sequences) > MAX_HELD_ROWS:
            error = HookError(f"prefill's verdict did not come within {MAX_HELD_ROWS} chunks")
            leg.closing = Closing("failed", error=error)

    def on_judgement(self, request_id: int, judgement: Judgement) -> None:
        """What classifiers made of the output so far."""
        leg = self._legs.find(request_id)
        if self._classifying is None or leg is None or leg.over or leg.guarded is None:
            return
        guarded = leg.guarded
        guarded.judgement = judgement
        try:
            self._classifying.write_down(guarded, judgement)
        except HookError as error:
            self._legs.end(leg, Closing("failed", error=error))
        else:
            again = self._again(leg, self._classifying.regeneration(guarded, judgement))
            if again is not None:
                self._legs.end(leg, again)
            else:
                self._past_guard(leg, guarded, guarded.guard.judged(judgement))
        leg.link.notify()

    def _again(self, leg: Leg, regeneration: common_pb2.Regeneration | None) -> Closing | None:
        """How a leg ends whose output is to be made again. Only where nothing was shown, which the
        settings see to, and no hook ended it.
        """
        if regeneration is None or leg.closing is None or leg.closing.outcome != "finished":
            return None
        regeneration.spent_tokens = leg.spent_tokens + leg.output.completion_tokens
        overlay = common_pb2.Task(regeneration=regeneration).SerializeToString()
        return Closing("regenerate", overlay=overlay)

    def _past_guard(self, leg: Leg, guarded: Guarded, step: GuardStep) -> None:
        if step.show is not None:
            self._show(leg, step.show)
        if leg.closing is not None and not leg.closing.by_itself:
            self._legs.end(leg, leg.closing)
        elif step.over:
            self._legs.end(leg, self._judged(leg, guarded))
        elif step.ask is not None and self._classifying is not None:
            end = leg.output.end
            finish_reason = "" if end is None else end.reason
            self._classifying.ask(guarded, step.ask, finish_reason=finish_reason)
            if leg.closing is not None:
                self._legs.cancel_engine(leg)  # a hook ended it before the engine did

    def _judged(self, leg: Leg, guarded: Guarded) -> Closing:
        """How a leg ends that classifiers have judged."""
        blocked_by = guarded.guard.blocked_by
        if blocked_by is not None:
            leg.output.end = End("stop", blocked_by, withheld=True)
        return leg.closing or Closing("finished")


def _ended_by_engine(leg: Leg, delta: Delta) -> Closing:
    if delta.end is Ending.CANCELLED:
        return Closing("cancelled")
    error = delta.error or EngineError("the engine gave no reason")
    return Closing("failed", error=error, retryable=delta.retryable and not leg.started)
