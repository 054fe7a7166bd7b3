"""Who judges a leg's output: its hooks, at once or elsewhere, and its classifiers."""

from __future__ import annotations

from tandem.hooks.chain import Chain
from tandem.hooks.deferred import DeferredHooks, SequenceInfo
from tandem.worker.classifying import Classifying
from tandem.worker.intake import Accepted
from tandem.worker.leg import Leg


class Judges:
    """Told of every leg that begins, and of every one that is over."""

    def __init__(
        self,
        hooks: Chain | DeferredHooks | None = None,
        classifying: Classifying | None = None,
    ) -> None:
        self.inline = hooks if isinstance(hooks, Chain) else None
        self.deferred = None if isinstance(hooks, Chain) else hooks
        self.classifying = classifying

    def open(self, leg: Leg, accepted: Accepted) -> None:
        """A leg begins."""
        task = accepted.task
        if self.classifying is not None:
            leg.guarded = self.classifying.guard(
                accepted.request, task, output_index=leg.output_index
            )
        if self.inline is None and self.deferred is None:
            return
        info = SequenceInfo(
            request_id=leg.request_id,
            group=leg.group,
            output_index=leg.output_index,
            streaming=task.streaming,
            trace_id=leg.trace_id,
        )
        if self.inline is not None:
            leg.output.hooks = self.inline.sequence(info)
        elif self.deferred is not None:
            self.deferred.open(info)

    def abort(self, leg: Leg) -> None:
        """It is over; those that know already are not told again."""
        leg.output.abort()
        if self.deferred is not None:
            self.deferred.abort(leg.request_id)
        if self.classifying is not None:
            self.classifying.cancel(leg.request_id)
