"""How a worker is chosen."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from router_bench import Bench
from router_loads import worker_load

from tandem_router.core.free import FreeWorkers, Index, Kind
from tandem_router.core.values import Fingerprint, Phase, Profile
from tandem_router.core.worker import Worker
from tandem_router.policies import LeastLoaded, Prompt, RoundRobin

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
PLAIN = Kind(overdue=False, parks=False, has_hook=False)
PROMPT = Prompt(tokens=100, tenant="")


def worker(
    key: str,
    open_legs: int = 0,
    capacity: int = 4,
    *,
    others: int = 0,
    phase: Phase = Phase.DECODE,
) -> Worker:
    """`others`: legs of other routers, beside the open ones."""
    profile = Profile(
        name=key,
        phase=phase,
        fingerprint=FINGERPRINT,
        max_sequences=capacity,
        context_length=100,
    )
    worker = Worker(key, phase, profile, draining=False, other_legs=others)
    worker.legs.update(range(open_legs))
    return worker


def free(*workers: Worker) -> FreeWorkers:
    index = Index(PLAIN)
    for each in workers:
        index.put(each, each.free)
    return FreeWorkers([index])


def test_round_robin_takes_turns() -> None:
    policy, workers = RoundRobin(), free(worker("a"), worker("b"), worker("c"))
    assert [policy.choose(workers, PROMPT).key for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_round_robin_goes_on_where_it_was_when_workers_come_and_go() -> None:
    policy = RoundRobin()
    assert policy.choose(free(worker("a"), worker("b")), PROMPT).key == "a"
    assert policy.choose(free(worker("aa"), worker("b")), PROMPT).key == "aa"
    assert policy.choose(free(worker("a"), worker("aa")), PROMPT).key == "a"


def test_least_loaded_compares_shares_not_numbers() -> None:
    workers = free(worker("small", open_legs=2, capacity=4), worker("large", 3, 16))
    assert LeastLoaded().choose(workers, PROMPT).key == "large"


def test_least_loaded_takes_the_first_of_equals() -> None:
    workers = free(worker("b"), worker("a"), worker("c"))
    assert LeastLoaded().choose(workers, PROMPT).key == "a"


# --- what a worker's load is ---


def prefill(key: str, *prompts: int, capacity: int = 4) -> Worker:
    found = worker(key, capacity=capacity, phase=Phase.PREFILL)
    for leg, tokens in enumerate(prompts):
        found.take(leg, tokens)
    return found


def least(*workers: Worker) -> str:
    return LeastLoaded(of_all([])).choose(free(*workers), PROMPT).key


@pytest.mark.promise("S5-252")
def test_of_prefill_workers_the_one_with_the_fewest_tokens_for_each_slot_is_chosen() -> None:
    assert least(prefill("a", 8_000), prefill("b", 100, 100, 100)) == "b"
    assert least(prefill("a", 300), prefill("b", 1_000, capacity=16)) == "b"
    assert least(prefill("a", 1), prefill("b", 2)) == "a"


@pytest.mark.promise("S5-252")
def test_a_prompt_counts_until_its_leg_is_closed() -> None:
    one = prefill("a", 500, 70)
    one.give_back(0, 500)
    assert (one.tokens, one.legs, one.load()) == (70, {1}, 17.5)


@pytest.mark.promise("S5-252")
def test_of_decode_workers_the_fuller_of_slots_and_kv_cache_counts() -> None:
    many, long = worker("many", 3, 8), worker("long", 1, 8)
    assert least(many, long) == "long"
    long.report(1, None, 900, 1_000)
    many.report(3, None, 300, 1_000)
    assert (many.load(), long.load()) == (0.375, 0.9)
    assert least(many, long) == "many"


@pytest.mark.promise("S5-252")
def test_what_a_worker_has_beyond_this_router_s_legs_is_others() -> None:
    one = prefill("a", 500)
    one.report(3, 1_700, 0, 0)
    assert (one.other_legs, one.other_tokens) == (2, 1_200)
    one.take(7, 300)
    assert one.load() == 2_000 / 4
    one.report(1, 400, 0, 0)
    assert (one.other_legs, one.other_tokens) == (0, 0)


@pytest.mark.promise("S5-252")
def test_a_worker_that_does_not_say_how_much_others_have_there_has_a_token_for_each_leg() -> None:
    old, decode = prefill("a", 40), worker("b", capacity=8)
    old.report(3, None, 999, 1_000)
    assert old.load() == 42 / 4
    decode.report(2, None, 999, 0)
    assert decode.load() == 2 / 8


@pytest.mark.promise("S5-252")
def test_a_report_is_read_with_all_that_it_says_of_load_and_nothing_that_it_does_not() -> None:
    bench = Bench(1, 0)
    told = bench.core.state.fleet.workers["prefill-0"]
    said = {"prompt_tokens": 0, "kv_tokens_used": 40, "kv_tokens_total": 100}
    bench.feed(worker_load("prefill-0", 3, **said))
    assert (told.other_legs, told.other_tokens) == (3, 0)
    assert (told.kv_tokens_used, told.kv_tokens_total) == (40, 100)
    bench.feed(worker_load("prefill-0", 3))
    assert (told.other_legs, told.other_tokens) == (3, 3), "each leg counts as one token"
    assert (told.kv_tokens_used, told.kv_tokens_total) == (0, 0)


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
        index.put(worker(key, others=1), 1)
    second.put(worker("d"), 1)
    expected = Counter(itertools.permutations("abcd", 2))
    assert drawn(FreeWorkers([index, second]), 4) == expected


@pytest.mark.promise("S5-251")
def test_of_workers_that_others_use_too_the_better_of_two_is_taken() -> None:
    workers = free(worker("a", others=1), worker("b", others=2), worker("c", others=3))
    chosen = {
        (first, second): LeastLoaded(of_all([first, second])).choose(workers, PROMPT).key
        for first in range(3)
        for second in range(2)
    }
    assert Counter(chosen.values()) == {"a": 4, "b": 2}


@pytest.mark.promise("S5-251")
def test_what_nobody_else_uses_is_taken_without_a_draw() -> None:
    workers = free(worker("a", 2), worker("b", 1), worker("c", 3))
    assert LeastLoaded(of_all([])).choose(workers, PROMPT).key == "b"


@pytest.mark.promise("S5-251")
def test_an_idle_worker_is_drawn_as_others_may_have_seen_it_idle_too() -> None:
    workers = free(worker("a"), worker("b"), worker("c", others=1), worker("d", others=2))
    assert LeastLoaded(of_all([1, 1])).choose(workers, PROMPT).key == "b"


@pytest.mark.promise("S5-251")
def test_one_worker_that_others_use_is_enough_for_a_draw_among_all_kinds() -> None:
    used, mine = Index(PLAIN), Index(PLAIN._replace(parks=True))
    used.put(worker("c", others=1), 1)
    for key in "ab":
        mine.put(worker(key), 1)
    assert FreeWorkers([used, mine]).shared
    assert not FreeWorkers([mine, Index(PLAIN)]).shared


@pytest.mark.promise("S5-251")
def test_what_others_used_is_one_s_own_when_they_have_gone() -> None:
    index, used = Index(PLAIN), worker("a", 1, others=1)
    for each in (used, worker("b")):
        index.put(each, each.free)
    assert FreeWorkers([index]).shared
    used.other_legs = 0
    index.put(used, used.free)
    assert not FreeWorkers([index]).shared
    used.other_legs = 1
    index.put(used, used.free)
    index.remove(used)
    assert not FreeWorkers([index]).shared


@pytest.mark.promise("S5-251")
def test_the_only_worker_is_taken_and_after_a_failure_the_least_loaded() -> None:
    assert LeastLoaded(of_all([])).choose(free(worker("a", others=1)), PROMPT).key == "a"
    index, failed = Index(PLAIN), worker("a", others=1)
    for each in (failed, worker("b", others=3), worker("c", others=2)):
        index.put(each, each.free)
    assert LeastLoaded(of_all([])).choose(FreeWorkers([index], [failed]), PROMPT).key == "c"
    assert LeastLoaded(of_all([])).choose(FreeWorkers([index], again=True), PROMPT).key == "a"


def refused(draw_of: Callable[[int], Callable[[int], int]]) -> int:
    """How much finds no slot of what eight routers start at once, from what the last reports said.
    `draw_of` gives each its draws.
    """
    loads = [worker(f"{n:02}", others=4 + n % 3, capacity=8) for n in range(40)]
    chosen: Counter[str] = Counter()
    for router in range(8):
        policy = LeastLoaded(draw_of(router))
        chosen.update(policy.choose(free(*loads), PROMPT).key for _ in range(4))
    return sum(max(0, chosen[each.key] - each.free) for each in loads)


@pytest.mark.promise("S5-251")
def test_routers_that_know_the_same_do_not_all_choose_the_same() -> None:
    assert refused(lambda _: lambda count: 0) == 28
    assert refused(lambda router: random.Random(router).randrange) <= 2
