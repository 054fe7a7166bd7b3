"""How a worker is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from router.policies import LeastLoaded, RoundRobin


@dataclass(frozen=True)
class _Worker:
    key: str
    open_legs: int = 0
    capacity: int = 4


def test_round_robin_takes_turns() -> None:
    policy, workers = RoundRobin(), [_Worker("a"), _Worker("b"), _Worker("c")]
    assert [policy.choose(workers).key for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_round_robin_goes_on_where_it_was_when_workers_come_and_go() -> None:
    policy = RoundRobin()
    assert policy.choose([_Worker("a"), _Worker("b")]).key == "a"
    assert policy.choose([_Worker("aa"), _Worker("b")]).key == "aa"
    assert policy.choose([_Worker("a"), _Worker("aa")]).key == "a"


def test_least_loaded_compares_shares_not_numbers() -> None:
    workers = [_Worker("small", open_legs=2, capacity=4), _Worker("large", 3, 16)]
    assert LeastLoaded().choose(workers).key == "large"


def test_least_loaded_takes_the_first_of_equals() -> None:
    workers = [_Worker("b"), _Worker("a"), _Worker("c")]
    assert LeastLoaded().choose(workers).key == "a"
