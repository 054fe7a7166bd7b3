"""How many of those that wait are told of it; what they are told is in
tests/unit/router_traces/waits.txt.
"""

from __future__ import annotations

import pytest
from router_bench import Bench

from tandem_router.core import actions, events
from tandem_router.core.waits import MOST_WAITS


@pytest.mark.promise("S5-792")
def test_of_many_that_wait_and_of_several_outputs_not_all_are_told() -> None:
    bench = Bench()
    bench.submit(1, n=2)
    bench.submit(2000, n=2, want_report=True)
    assert told(bench) == [], "of several outputs"
    asked = range(3, MOST_WAITS + 13)
    at_once = []
    for first in asked:
        bench.submit(first, want_report=True)
        at_once += told(bench)
    assert at_once == list(asked[:MOST_WAITS])
    bench.feed(events.Tick(), after=1.0)
    assert told(bench) == at_once
    bench.feed(events.Cancel(1, 3))
    assert len(bench.core.state.waiting.told) == MOST_WAITS - 1, "what has ended is not kept"
    bench.feed(events.Tick(), after=1.0)
    assert told(bench) == at_once[1:], "what has ended is forgotten"


def told(bench: Bench) -> list[int]:
    """Who was told anything just now."""
    return [each.sequence for each in bench.of(actions.TellWait)]
