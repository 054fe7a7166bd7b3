"""What is known of one request: the stories of a frontend and of a router, joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from tandem.timeline import LegTimes, Part, divide
from tandem_frontend.http.call_story import CallStory
from tandem_router.core.story import Moment, SequenceStory, Story

T = TypeVar("T", CallStory, Story)


@dataclass(slots=True, frozen=True)
class Wait:
    """A stay in the router's queue."""

    queued: Moment
    seconds: float


@dataclass(slots=True, frozen=True)
class Run:
    """One run of a sequence on workers."""

    chosen: Moment
    closed: tuple[Moment, ...]
    seconds: float
    """Until the sequence was queued again, or ended."""
    given_up: Moment | None
    """Why the run is not the last: a retry, regenerate or resume."""

    def times(self, phase: str) -> LegTimes | None:
        """What the run's worker of a phase measured; None: it does not say."""
        return next((each.times for each in self.closed if each.phase == phase), None)

    def usual(self, phase: str) -> float:
        """What the engine of a phase usually took for so many tokens; 0: not known."""
        return next((each.usual for each in self.closed if each.phase == phase), 0.0)


@dataclass(slots=True, frozen=True)
class Evidence:
    """Every story that components told of a trace id; at least one is there."""

    call: CallStory | None
    story: Story | None
    """The router's request of the trace id that took longest, where several have the id."""

    @property
    def trace_id(self) -> str:
        told = self.call or self.story
        assert told is not None
        return told.trace_id

    @property
    def seconds(self) -> float:
        """From the request's arrival to its end."""
        told = self.call or self.story
        assert told is not None
        return told.seconds

    @property
    def outcome(self) -> str:
        """finished, or an error's code; empty: it is open."""
        told = self.call or self.story
        assert told is not None
        return told.outcome

    @property
    def delay(self) -> float:
        """Seconds by which the slowest are found."""
        return max(told.delay for told in (self.call, self.story) if told is not None)

    @property
    def sequence(self) -> SequenceStory | None:
        """The output that took longest."""
        outputs = () if self.story is None else self.story.sequences
        return max(outputs, key=lambda each: each.seconds, default=None)

    @property
    def _end(self) -> float:
        assert self.story is not None
        sequence = self.sequence
        return (sequence.seconds if sequence else 0.0) or self.story.seconds

    def waits(self) -> list[Wait]:
        """The sequence's stays in the queue."""
        moments = () if self.sequence is None else self.sequence.moments
        found = []
        for place, queued in enumerate(moments):
            if queued.name == "queued":
                later = (each.at for each in moments[place:] if each.name == "pair_chosen")
                found.append(Wait(queued, next(later, self._end) - queued.at))
        return found

    def runs(self) -> list[Run]:
        """The sequence's runs, the last one last."""
        moments = () if self.sequence is None else self.sequence.moments
        starts = [place for place, each in enumerate(moments) if each.name == "pair_chosen"]
        found = []
        for start, following in zip(starts, [*starts[1:], len(moments)], strict=False):
            mine = moments[start:following]
            ended = next((each.at for each in mine if each.name == "queued"), self._end)
            given_up = (each for each in mine if each.name in ("retry", "regenerate", "resume"))
            closed = tuple(each for each in mine if each.name == "closed")
            chosen = moments[start]
            found.append(Run(chosen, closed, ended - chosen.at, next(given_up, None)))
        return found

    def parts(self) -> dict[Part, float]:
        """Where the time of the request went."""
        runs, call = self.runs(), self.call
        closed = runs[-1].closed if runs else ()
        queue = sum(each.seconds for each in self.waits())
        if call is None:
            return divide(self.seconds, queue=queue, legs=_times(closed))
        return divide(
            self.seconds,
            read=call.reading,
            queue=queue + call.queue,
            legs=_times(closed),
            client=call.seconds - call.over if call.over else 0.0,
        )


def _times(closed: Iterable[Moment]) -> list[LegTimes]:
    return [each.times for each in closed if each.times is not None]


def joined(calls: Iterable[CallStory], stories: Iterable[Story]) -> dict[str, Evidence]:
    """Evidence by trace id, of which there may be several stories: those that took longest."""
    found_calls = _longest(calls)
    found = _longest(stories)
    return {
        trace_id: Evidence(found_calls.get(trace_id), found.get(trace_id))
        for trace_id in {**found_calls, **found}
    }


def _longest(told: Iterable[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for each in told:
        known = found.get(each.trace_id)
        if known is None or each.seconds > known.seconds:
            found[each.trace_id] = each
    return found
