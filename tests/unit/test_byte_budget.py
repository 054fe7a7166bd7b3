"""The budget of bytes: exact, never negative, never past its limit; whoever holds most, or more
than its own bound, ends.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandem.byte_budget import Allotment, ByteBudget
from tandem.errors import QueueFullError
from tandem.metrics import HeldMetrics, new_registry

LIMIT = 100
SIZES = st.integers(0, LIMIT + 10)


class Holders(RuleBasedStateMachine):
    """Any holders of one budget, beside a plain account of what each of them has."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(LIMIT)
        self.has: dict[Allotment, int] = {}
        self.endable: set[Allotment] = set()
        self.bounds: dict[Allotment, int] = {}

    def one(self, place: int) -> Allotment | None:
        return list(self.has)[place % len(self.has)] if self.has else None

    @rule(endable=st.booleans(), most=st.integers(0, 2 * LIMIT))
    def comes(self, endable: bool, most: int) -> None:
        end = self.ends(lambda: allotment) if endable else None
        allotment = self.budget.allotment(end, most)
        self.has[allotment], self.bounds[allotment] = 0, most
        if endable:
            self.endable.add(allotment)

    def ends(self, which: Callable[[], Allotment]) -> Callable[[], None]:
        def end() -> None:
            most = max(size for each, size in self.has.items() if each in self.endable)
            has = self.has.pop(which())  # there is none that was ended before
            assert has == most or has > self.bounds[which()], "another holds more"

        return end

    @rule(place=st.integers(0), size=SIZES)
    def takes_something_new(self, place: int, size: int) -> None:
        if allotment := self.one(place):
            fits = sum(self.has.values()) + size <= LIMIT * 3 // 4
            try:
                allotment.admit(size)
            except QueueFullError:
                assert not fits
            else:
                assert fits
                self.has[allotment] += size

    @rule(place=st.integers(0), size=SIZES)
    def grows(self, place: int, size: int) -> None:
        allotment = self.one(place)
        if allotment in self.endable and allotment in self.has:
            self.has[allotment] += size  # counted as its own, where it is asked who holds most
            self.check(allotment, allotment.grow(size))

    @rule(place=st.integers(0), size=SIZES)
    def holds(self, place: int, size: int) -> None:
        allotment = self.one(place)
        if allotment in self.endable and allotment in self.has:
            self.has[allotment] = size
            self.check(allotment, allotment.hold(size))

    def check(self, allotment: Allotment, fits: bool) -> None:
        assert fits == (allotment in self.has)
        assert not fits or self.has[allotment] <= self.bounds[allotment]

    @rule(place=st.integers(0), size=SIZES)
    def gives_back(self, place: int, size: int) -> None:
        if allotment := self.one(place):
            if size <= self.has[allotment]:
                allotment.give_back(size)
                self.has[allotment] -= size
            else:
                with pytest.raises(ValueError, match="given back"):
                    allotment.give_back(size)

    @rule(place=st.integers(0))
    def goes(self, place: int) -> None:
        if allotment := self.one(place):
            del self.has[allotment]
            allotment.close()
            allotment.close()
            assert not allotment.grow(5)
            allotment.give_back(5)
            assert allotment.size == 0

    @invariant()
    def it_holds_what_they_have(self) -> None:
        assert {each: each.size for each in self.has} == self.has
        assert self.budget.held == sum(self.has.values()) <= LIMIT

    def teardown(self) -> None:
        for allotment in list(self.has):
            allotment.close()
        assert self.budget.held == 0
        assert self.budget._endable == {}


TestHolders = pytest.mark.promise("S6-187", "S6-189")(Holders.TestCase)


@pytest.mark.promise("S6-169")
def test_a_stream_is_given_up_past_its_bound_and_once_and_another_keeps_what_it_holds() -> None:
    budget, given_up = ByteBudget(LIMIT), []
    stream = budget.allotment(lambda: given_up.append(stream.size), most=40)
    other = budget.allotment(lambda: given_up.append(0))
    assert other.hold(50)
    assert stream.hold(40)
    assert stream.hold(10)
    assert stream.grow(30)
    assert given_up == []
    assert not stream.grow(1)
    assert given_up == [41]
    assert (stream.closed, budget.held) == (True, 50)
    assert not stream.hold(41)
    assert not stream.hold(1)
    stream.close()
    assert (given_up, stream.size, budget.held) == ([41], 0, 50)


@pytest.mark.promise("S6-187")
@given(SIZES)
def test_what_is_new_leaves_a_quarter_to_the_output_of_what_runs(size: int) -> None:
    budget = ByteBudget(LIMIT)
    new, running = budget.allotment(), budget.allotment(lambda: None)
    if size <= 75:
        new.admit(size)
        assert running.grow(LIMIT - size)
        assert budget.held == LIMIT
    else:
        with pytest.raises(QueueFullError):
            new.admit(size)
        assert (new.size, budget.held) == (0, 0)


@pytest.mark.promise("S6-189")
def test_an_end_that_fails_gives_back_what_was_held_all_the_same() -> None:
    def fail() -> None:
        raise RuntimeError("it cannot be ended")

    budget = ByteBudget(LIMIT)
    large, small = budget.allotment(fail), budget.allotment(lambda: None)
    large.grow(90)
    with pytest.raises(RuntimeError, match="cannot be ended"):
        small.grow(20)
    assert budget.held == 0


def test_what_is_held_and_may_be_is_told_by_component() -> None:
    budget = ByteBudget(LIMIT)
    budget.allotment().admit(7)
    registry = new_registry("decode_worker")
    registry.register(HeldMetrics("worker", budget, phase="decode"))
    labels = {"phase": "decode"}
    assert registry.get_sample_value("tandem_worker_held_bytes", labels) == 7
    assert registry.get_sample_value("tandem_worker_held_bytes_limit", labels) == LIMIT
