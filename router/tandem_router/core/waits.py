"""What a client that asks for a report is told of its wait, while nothing of the answer has come.

The client is told causes and counts: how many slots there are, how many others wait. Never whose
the other requests are.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem_router.core.actions import TellWait
from tandem_router.core.sequences import RoutedStage, Sequence
from tandem_router.core.state import State
from tandem_router.core.stories import queue_cause
from tandem_router.core.story import Ahead

MOST_WAITS = 256
"""Sequences that are told of their waits at once; what waits beside them is told nothing."""
SECONDS = 1.0
"""A sequence that waits is told so often how things stand."""


def asks(sequence: Sequence) -> bool:
    """Whether the sequence's client is told what the sequence waits for: the only output of a
    request that wants a report.
    """
    submit = sequence.request.submit
    return submit.want_report and submit.n == 1


class Waits:
    """Sequences in the queue whose clients are told. Acts on a State, and notes there what is to be
    said.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._told_at = 0.0

    def note_queued(self, queued: Iterable[Sequence]) -> None:
        """Tell sequences that have come into the queue, and could not start, of their wait."""
        waiting = self._state.waiting
        if not waiting.told:
            self._told_at = self._state.now
        for each in queued:
            if asks(each) and each.stage is RoutedStage.QUEUED and len(waiting.told) < MOST_WAITS:
                waiting.told[each] = None
                self._tell(each, waiting.count_in(each.request.edition))

    def tell(self) -> None:
        """Tell all how things stand, if it is time to."""
        waiting = self._state.waiting
        if waiting.told and self._state.now - self._told_at >= SECONDS:
            self._told_at = self._state.now
            editions = {each.request.edition for each in waiting.told}
            counts = {each: waiting.count_in(each) for each in editions}
            for each in waiting.told:
                self._tell(each, counts[each.request.edition])

    def _tell(self, sequence: Sequence, count: int) -> None:
        """`count`: sequences that wait for the same workers, this one included."""
        state, request, others = self._state, sequence.request, count - 1
        waiting = {0: "no other waits", 1: "1 more waits"}.get(others, f"{others} more wait")
        what = f"{queue_cause(sequence, state.fleet)}; {waiting}"
        state.actions.append(TellWait(request.frontend, sequence.number, what))


def prefill_wait(sequence: Sequence, ahead: Ahead | None) -> TellWait | None:
    """What a sequence is told whose legs start; None: nothing."""
    if not asks(sequence) or not (ahead or sequence.queue_cause):
        return None
    what = "prefill"
    if ahead is not None:
        prompts = "prompt" if ahead.prompts == 1 else "prompts"
        what = f"prefill, behind {ahead.prompts} {prompts} on the same worker"
    return TellWait(sequence.request.frontend, sequence.number, what)
