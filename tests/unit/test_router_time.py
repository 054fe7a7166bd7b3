"""When a router looks at the time: as soon as that has something to do, and hardly ever otherwise.

That nothing happens by time alone before the core has said so is held by the bench itself, in every
test of the core (router_bench.py), and by the simulation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from math import inf

import pytest
from simulated.loop import VirtualLoop

from tandem_router.core import actions, events
from tandem_router.core.timers import Timers
from tandem_router.core.values import Bounds
from tandem_router.links import HEARTBEAT_SECONDS
from tandem_router.relay import TICK_SECONDS, Relay


def test_timers_say_when_the_first_may_come() -> None:
    """Never later than it does, and no earlier once they were asked."""
    draw = random.Random(2)
    timers: Timers[int] = Timers()
    left: dict[int, float] = {}
    now = 0.0
    for item in range(3_000):
        now += draw.choice((0.0, 0.01, 0.3))
        timers.set(item, now + draw.choice((0.0, 0.05, 1.0, 60.0)))
        left[item] = next(at for each, at in _times(timers) if each == item)
        if draw.random() < 0.5:
            gone = draw.choice(sorted(left))
            timers.clear(gone, left.pop(gone))
        for each in timers.due(now):
            del left[each]
        assert timers.first <= min(left.values(), default=inf)
    for each in sorted(left):
        timers.clear(each, left.pop(each))
    timers.due(now + 100.0)
    assert timers.first == inf
    timers.set(1, now + 107.0)
    timers.set(2, now + 103.0)
    timers.set(3, now + 105.0)
    assert timers.first == now + 103.0
    assert timers.due(now + 104.0) == [2]
    assert timers.first == now + 105.0


def _times(timers: Timers[int]) -> Iterable[tuple[int, float]]:
    for slot in timers._slots.values():
        yield from slot.items()


# --- when the relay looks -------------------------------------------------------------------------


class Core:
    """It waits for what the test says, and keeps when it was told of the time."""

    bounds = Bounds()
    draining = False
    idle = True

    def __init__(self) -> None:
        self.wakes_at = inf
        self.told: list[float] = []

    def handle(self, now: float, batch: Iterable[events.Event]) -> list[actions.Action]:
        if any(isinstance(event, events.Tick) for event in batch):
            self.told.append(now)
        return []


class Rig:
    """A relay in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(lambda: None)
        self.core = Core()
        self.relay = Relay(self.core, clock=self.loop.time)  # type: ignore[arg-type]
        self.beats = 0
        self.relay._tell_fleet = self._beat  # type: ignore[method-assign]
        self.keeping = self.loop.create_task(self.relay.keep_time())

    def _beat(self) -> None:
        self.beats += 1

    def run(self, seconds: float) -> list[float]:
        """When the core was told of the time meanwhile."""
        self.core.told.clear()
        self.loop.run_until_complete(asyncio.sleep(seconds))
        return [*self.core.told]

    def happens(self) -> None:
        self.relay.handle(events.FrontendDown(1))


@pytest.fixture
def rig() -> Iterable[Rig]:
    made = Rig()
    yield made
    made.loop.abandon()
    made.loop.close()


@pytest.mark.promise("S5-448")
def test_a_router_with_nothing_to_do_looks_once_a_beat(rig: Rig) -> None:
    assert len(rig.run(10 * HEARTBEAT_SECONDS)) in (9, 10, 11)
    assert rig.beats in (9, 10)


@pytest.mark.promise("S5-448")
def test_a_router_looks_when_something_is_due(rig: Rig) -> None:
    rig.run(0.31)
    rig.core.wakes_at = 0.75
    rig.happens()
    assert rig.run(0.5) == [pytest.approx(0.75)]


@pytest.mark.promise("S5-448")
def test_what_is_due_at_any_time_has_it_look_ten_times_a_second(rig: Rig) -> None:
    rig.run(0.95)
    rig.core.wakes_at = 0.0
    rig.happens()
    assert len(rig.run(10 * TICK_SECONDS)) in (9, 10, 11)


@pytest.mark.promise("S5-448")
def test_what_happens_all_the_time_does_not_keep_it_from_looking(rig: Rig) -> None:
    rig.core.wakes_at = 0.0
    told = []
    for _ in range(1_000):
        rig.happens()
        told += rig.run(0.001)
    assert len(told) in (9, 10, 11)
