"""How a worker is chosen."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest

from router.core.free import FreeWorkers, Index, Kind
from router.core.values import Fingerprint, Phase, Profile
from router.core.worker import Worker
from router.policies import LeastLoaded, RoundRobin

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
PLAIN = Kind(overdue=False, parks=False, has_hook=False)


def worker(key: str, open_legs: int = 0, capacity: int = 4, *, others: int = 0) -> Worker:
    """`others`: legs of other routers, beside the open ones."""
    profile = Profile(
        name=key,
        phase=Phase.DECODE,
        fingerprint=FINGERPRINT,
        max_sequences=capacity,
        context_length=100,
    )
    worker = Worker(key, Phase.DECODE, profile, draining=False, other_legs=others)
    worker.legs.update(range(open_legs))
    return worker


def free(*workers: Worker) -> FreeWorkers:
    index = Index(PLAIN)
    for each in workers:
        index.put(each)
    return FreeWorkers([index])


def test_round_robin_takes_turns() -> None:
    policy, workers = RoundRobin(), free(worker("a"), worker("b"), worker("c"))
    assert [policy.choose(workers).key for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_round_robin_goes_on_where_it_was_when_workers_come_and_go() -> None:
    policy = RoundRobin()
    assert policy.choose(free(worker("a"), worker("b"))).key == "a"
    assert policy.choose(free(worker("aa"), worker("b"))).key == "aa"
    assert policy.choose(free(worker("a"), worker("aa"))).key == "a"


def test_least_loaded_compares_shares_not_numbers() -> None:
    workers = free(worker("small", open_legs=2, capacity=4), worker("large", 3, 16))
    assert LeastLoaded().choose(workers).key == "large"


def test_least_loaded_takes_the_first_of_equals() -> None:
    workers = free(worker("b"), worker("a"), worker("c"))
    assert LeastLoaded().choose(workers).key == "a"


# --- several routers ---


def of_all(draws: list[int]) -> Callable[[int], int]:
    """Gives those numbers, one after the other; they must be below what is asked for."""
    numbers = iter(draws)

    def draw(count: int) -> int:
        number = next(numbers)
        assert 0 <= number < count
        return number

    return draw


def drawn(candidates: FreeWorkers, count: int) -> Counter[tuple[str, str]]:
    """What comes of all draws, each once."""
    return Counter(
        (one.key, other.key)
        for first in range(count)
        for second in range(count - 1)
        for one, other in [candidates.two_at_random(of_all([first, second]))]
    )


@pytest.mark.promise("S5-251")
def test_any_two_are_drawn_as_often_and_never_one_twice() -> None:
    index, second = Index(PLAIN), Index(PLAIN)
    for key in "abc":
        index.put(worker(key, others=1))
    second.put(worker("d"))
    expected = Counter(itertools.permutations("abcd", 2))
    assert drawn(FreeWorkers([index, second]), 4) == expected


@pytest.mark.promise("S5-251")
def test_of_workers_that_others_use_too_the_better_of_two_is_taken() -> None:
    workers = free(worker("a", others=1), worker("b", others=2), worker("c", others=3))
    chosen = {
        (first, second): LeastLoaded(of_all([first, second])).choose(workers).key
        for first in range(3)
        for second in range(2)
    }
    assert Counter(chosen.values()) == {"a": 4, "b": 2}


@pytest.mark.promise("S5-251")
def test_what_nobody_else_uses_is_taken_without_a_draw() -> None:
    workers = free(worker("a", 2), worker("b", 1), worker("c", 3))
    assert LeastLoaded(of_all([])).choose(workers).key == "b"


@pytest.mark.promise("S5-251")
def test_an_idle_worker_is_drawn_as_others_may_have_seen_it_idle_too() -> None:
    workers = free(worker("a"), worker("b"), worker("c", others=1), worker("d", others=2))
    assert LeastLoaded(of_all([1, 1])).choose(workers).key == "b"


@pytest.mark.promise("S5-251")
def test_what_others_used_is_one_s_own_when_they_have_gone() -> None:
    index, used = Index(PLAIN), worker("a", 1, others=1)
    for each in (used, worker("b")):
        index.put(each)
    assert FreeWorkers([index]).shared
    used.other_legs = 0
    index.put(used)
    assert not FreeWorkers([index]).shared
    used.other_legs = 1
    index.put(used)
    index.remove(used)
    assert not FreeWorkers([index]).shared


@pytest.mark.promise("S5-251")
def test_the_only_worker_is_taken_and_after_a_failure_the_least_loaded() -> None:
    assert LeastLoaded(of_all([])).choose(free(worker("a", others=1))).key == "a"
    index, failed = Index(PLAIN), worker("a", others=1)
    for each in (failed, worker("b", others=3), worker("c", others=2)):
        index.put(each)
    assert LeastLoaded(of_all([])).choose(FreeWorkers([index], [failed])).key == "c"
    assert LeastLoaded(of_all([])).choose(FreeWorkers([index], again=True)).key == "a"


def refused(draw_of: Callable[[int], Callable[[int], int]]) -> int:
    """How much finds no slot of what eight routers start at once, from what the last reports said.
    `draw_of` gives each its draws.
    """
    loads = [worker(f"{n:02}", others=4 + n % 3, capacity=8) for n in range(40)]
    chosen: Counter[str] = Counter()
    for router in range(8):
        policy = LeastLoaded(draw_of(router))
        chosen.update(policy.choose(free(*loads)).key for _ in range(4))
    return sum(max(0, chosen[each.key] - each.free) for each in loads)


@pytest.mark.promise("S5-251")
def test_routers_that_know_the_same_do_not_all_choose_the_same() -> None:
    assert refused(lambda _: lambda count: 0) == 28
    assert refused(lambda router: random.Random(router).randrange) <= 2
