"""What a client is told of its wait by the router's core: causes and counts, and no one's name."""

from __future__ import annotations

import pytest
from test_router_stories import OTHER, Bench

from tandem.endings import Outcome
from tandem_router.core import actions, events
from tandem_router.core.values import Phase
from tandem_router.core.waits import MOST_WAITS

FULL = "no slot is free on decode, which has 2"


class Queue(Bench):
    """A worker of each phase, and what is said of waits for them."""

    def __init__(self, decode: int = 2) -> None:
        super().__init__(workers=0)
        self.worker(Phase.PREFILL, 0, max_sequences=8)
        self.worker(Phase.DECODE, 0, max_sequences=decode)
        self._looked = len(self.done)

    def told(self) -> list[tuple[int, str]]:
        """What was said since the last look."""
        new, self._looked = self.done[self._looked :], len(self.done)
        return [(each.sequence, each.what) for each in new if isinstance(each, actions.TellWait)]


@pytest.mark.promise("S5-792")
def test_who_waits_is_told_why_and_how_many_others_wait_at_once_and_each_second() -> None:
    bench = Queue()
    bench.submit(first=1, want_report=True)
    assert bench.told() == [], "it waits for nothing"
    bench.submit(first=2)
    bench.submit(first=3, want_report=True, trace_id=OTHER, tenant="acme")
    assert bench.told() == [(3, f"{FULL}; no other waits")]
    bench.submit(first=4, tenant="rival")
    assert bench.told() == [], "who asks for no report is told nothing"
    bench.feed(events.Tick(), after=0.5)
    assert bench.told() == [], "it was told half a second ago"
    bench.feed(events.Tick(), after=0.5)
    assert bench.told() == [(3, f"{FULL}; 1 more waits")]
    bench.feed(events.Tick(), after=0.5)
    assert bench.told() == [], "not more often than once a second"
    bench.submit(first=5, tenant="rival")
    bench.feed(events.Tick(), after=0.5)
    assert bench.told() == [(3, f"{FULL}; 2 more wait")]


@pytest.mark.promise("S5-792")
def test_who_leaves_the_queue_is_told_how_many_prompts_are_before_its_own() -> None:
    bench = Queue()
    bench.submit(first=1)
    bench.submit(first=2, want_report=True)
    assert bench.told() == [(2, "prefill, behind 1 prompt on the same worker")]
    bench.submit(first=3, want_report=True)
    bench.told()
    for leg in bench.legs()[:2]:
        bench.close(leg, Outcome.FINISHED)
    assert bench.told() == [(3, "prefill, behind 1 prompt on the same worker")]
    bench.feed(events.Tick(), after=5.0)
    assert bench.told() == [], "it waits in no queue any more"


@pytest.mark.promise("S5-792")
def test_who_waited_and_has_nobody_before_it_is_told_that_prefill_has_begun() -> None:
    bench = Queue(decode=1)
    bench.submit(first=1)
    bench.submit(first=2, want_report=True)
    bench.told()
    for leg in bench.legs():
        bench.close(leg, Outcome.FINISHED)
    assert bench.told() == [(2, "prefill")]


@pytest.mark.promise("S5-792")
def test_of_many_that_wait_and_of_several_outputs_not_all_are_told() -> None:
    bench = Queue(decode=1)
    bench.submit(first=1)
    bench.submit(first=2000, n=2, want_report=True)
    assert bench.told() == [], "of several outputs"
    for first in range(2, MOST_WAITS + 12):
        bench.submit(first=first, want_report=True)
    assert len(bench.told()) == MOST_WAITS
    bench.feed(events.Tick(), after=1.0)
    first = [sequence for sequence, _ in bench.told()]
    assert first == list(range(2, MOST_WAITS + 2))
    bench.feed(events.Cancel(1, 2))
    assert len(bench.core.state.waiting.told) == MOST_WAITS - 1, "what has ended is not kept"
    bench.feed(events.Tick(), after=1.0)
    assert [sequence for sequence, _ in bench.told()] == first[1:], "what has ended is forgotten"
