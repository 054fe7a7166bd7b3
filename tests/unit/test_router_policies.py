"""How a worker is chosen."""

from __future__ import annotations

from router.core.free import FreeWorkers, Index
from router.core.values import Fingerprint, Phase, Profile
from router.core.worker import Worker
from router.policies import LeastLoaded, RoundRobin

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)


def worker(key: str, open_legs: int = 0, capacity: int = 4) -> Worker:
    profile = Profile(
        name=key,
        phase=Phase.DECODE,
        fingerprint=FINGERPRINT,
        max_sequences=capacity,
        context_length=100,
    )
    return Worker(key, Phase.DECODE, profile, draining=False, other_legs=open_legs)


def free(*workers: Worker) -> FreeWorkers:
    index = Index()
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
