"""What routers know of prefix caches, and the policy that goes by it."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from router_bench import Bench
from router_loads import cache_changes, worker_load
from test_router_policies import PLAIN, worker

from tandem.prefix_blocks import BLOCK_TOKENS, unpacked
from tandem.v1 import worker_pb2
from tandem_router.core.actions import StartLeg
from tandem_router.core.free import FreeWorkers, Index
from tandem_router.core.prefixes import BYTES_A_BLOCK, HeldPrefixes, depth_in
from tandem_router.core.values import Phase
from tandem_router.core.worker import Worker
from tandem_router.policies import Prefix, Prompt

BLOCKS = tuple(range(1, 11))
PROMPT = Prompt(tokens=10 * BLOCK_TOKENS + 6, tenant="", blocks=BLOCKS)


def prefill(key: str, *, backlog: int = 0, capacity: int = 4) -> Worker:
    found = worker(key, capacity=capacity, phase=Phase.PREFILL)
    found.tokens = backlog
    return found


def whole(key: str) -> Worker:
    """The prefill phase of an aggregated worker."""
    plain = prefill(key).profile
    profile = replace(plain, fingerprint=plain.fingerprint._replace(aggregated=True), instance=key)
    return Worker(key, Phase.PREFILL, profile, draining=False)


def index_of(prefixes: HeldPrefixes, *workers: Worker) -> Index:
    index = Index(PLAIN._replace(aggregated=workers[0].aggregated), prefixes)
    for each in workers:
        index.put(each, each.free)
    return index


def prompt(blocks: Sequence[int], rest: int = 0, session: int = 0) -> Prompt:
    return Prompt(len(blocks) * BLOCK_TOKENS + rest, "", tuple(blocks), session)


def told(
    entered: Sequence[int] = (), left: Sequence[int] = (), *, anew: bool = False
) -> worker_pb2.CacheChanges:
    return cache_changes(anew=anew, entered=entered, left=left)


def choose(
    prefixes: HeldPrefixes, *workers: Worker, of: Prompt = PROMPT, policy: Prefix | None = None
) -> Worker:
    index = index_of(prefixes, *workers)
    return (policy or Prefix(random.Random(1).randrange)).choose(index.alone, of)


def depth(worker: Worker, blocks: Sequence[int] = BLOCKS) -> int:
    return depth_in(blocks, worker.holdings.blocks)


# --- what is known ---


@pytest.mark.promise("S5-254")
def test_what_is_sent_to_a_worker_counts_as_held_at_once() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    prefixes.send(one, prompt(BLOCKS[:4]))
    assert depth(one) == 4
    assert one.to_compute(PROMPT) == 6 * BLOCK_TOKENS + 6


@pytest.mark.promise("S5-254")
def test_the_last_token_is_computed_of_a_prompt_that_is_cached_as_a_whole() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    whole_blocks = prompt(BLOCKS)
    prefixes.send(one, whole_blocks)
    assert one.to_compute(whole_blocks) == 1


@pytest.mark.promise("S5-254")
def test_what_a_worker_reports_is_the_truth() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    prefixes.send(one, prompt(BLOCKS[:4]))
    prefixes.report(one, told(BLOCKS[:6]), 1.0)
    assert depth(one) == 6
    prefixes.report(one, told(left=BLOCKS[2:6]), 2.0)
    assert depth(one) == 2


@pytest.mark.promise("S5-254")
def test_what_was_sent_and_is_not_confirmed_is_forgotten() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    prefixes.report(one, told(), 0.0)
    fresh = prefixes.send(one, PROMPT)
    for second in range(9):  # as long as the leg is open it may be computed yet
        prefixes.report(one, told(), second)
    assert depth(one) == 10
    prefixes.settle(one, fresh, 10.0)
    prefixes.report(one, told(BLOCKS[:3]), 10.1)
    for early in (10.2, 10.3, 10.9):  # however many there are, they may be of the time before
        prefixes.report(one, told(), early)
    assert depth(one) == 10
    prefixes.report(one, told(), 11.0)
    assert depth(one) == 3


@pytest.mark.promise("S5-254")
def test_a_worker_that_begins_anew_holds_what_it_says_and_what_is_on_its_way() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    prefixes.report(one, told(BLOCKS), 1.0)
    prefixes.send(one, prompt((21, 22)))
    prefixes.report(one, told(BLOCKS[:1], anew=True), 2.0)
    assert depth(one) == 1
    assert depth(one, (21, 22)) == 2


@pytest.mark.promise("S5-254")
def test_of_a_worker_that_reports_nothing_what_its_kv_cache_can_hold_is_believed() -> None:
    prefixes, one = HeldPrefixes(), prefill("a")
    one.kv_tokens_total = 6 * BLOCK_TOKENS
    first, second, third = (prompt(range(n, n + 3)) for n in (100, 200, 300))
    for each in (first, second, first, third):
        prefixes.settle(one, prefixes.send(one, each), 1.0)
    assert [depth(one, each.blocks) for each in (first, second, third)] == [3, 0, 3]
    prefixes.send(one, prompt(range(400, 402)))
    assert depth(one, first.blocks) == 1  # the end of a prompt goes first


def test_a_worker_that_is_gone_holds_nothing() -> None:
    prefixes, one, other = HeldPrefixes(), prefill("a"), prefill("b")
    for each in (one, other):
        prefixes.send(each, PROMPT)
    prefixes.forget(one)
    assert (prefixes.count, next(prefixes.holders(BLOCKS, 4, aggregated=False))) == (10, (other,))
    prefixes.forget(other)
    assert (prefixes.count, list(prefixes.holders(BLOCKS, 4, aggregated=False))) == (0, [])


def test_the_index_takes_no_more_than_its_bytes_and_forgets_what_was_used_longest_ago() -> None:
    prefixes, one, other = HeldPrefixes(20 * BYTES_A_BLOCK), prefill("a"), prefill("b")
    prefixes.send(one, PROMPT)
    prefixes.report(other, told(range(100, 110)), 1.0)
    prefixes.send(one, PROMPT)
    prefixes.report(other, told(range(200, 205)), 1.0)
    assert prefixes.count == 20
    assert depth(one) == 10
    assert depth(other, tuple(range(100, 110))) < 10
    prefixes.report(other, told(range(300, 400)), 1.0)
    assert prefixes.count == 20
    assert depth(one) == 0


def test_pairs_and_aggregated_workers_share_the_index_and_those_with_more_blocks_forget() -> None:
    prefixes, one, other = HeldPrefixes(20 * BYTES_A_BLOCK), prefill("a"), whole("b")
    prefixes.send(one, prompt(BLOCKS[:5]))
    prefixes.report(other, told(range(100, 200)), 1.0)
    assert (prefixes.count, other.held, depth(one)) == (20, 15, 5)
    prefixes.report(one, told(range(200, 300)), 1.0)
    assert prefixes.count == 20
    assert other.held in (10, 11)


def test_a_block_takes_what_is_counted_for_it() -> None:
    """When the tables have just grown, which is when they are the emptiest."""
    one, numbers = prefill("a"), random.Random(1)
    tracemalloc.start()
    prefixes = HeldPrefixes()
    for _ in range(440):
        prefixes.report(one, told([numbers.getrandbits(64) for _ in range(100)]), 1.0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 * BYTES_A_BLOCK < taken / prefixes.count < BYTES_A_BLOCK


def test_a_session_s_last_worker_is_known_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem_router.core.prefixes.MOST_SESSIONS", 2)
    prefixes, one, other = HeldPrefixes(), prefill("a"), prefill("b")
    for session, where in ((1, one), (2, one), (1, other), (3, one)):
        prefixes.send(where, prompt((), 10, session))
    assert [prefixes.last_of(each) for each in (1, 2, 3)] == [other, None, one]


# --- who is chosen ---


@pytest.mark.promise("S5-255")
def test_the_worker_that_holds_the_prompt_is_taken() -> None:
    prefixes, workers = HeldPrefixes(), [prefill(key) for key in "abcdefgh"]
    prefixes.send(workers[5], prompt(BLOCKS[:7]))
    assert choose(prefixes, *workers).key == "f"


@pytest.mark.promise("S5-255")
@pytest.mark.parametrize(
    ("backlog", "chosen"), [(4 * 7 * BLOCK_TOKENS, "b"), (4 * 448 + 1, "a"), (4 * 448 - 1, "b")]
)
def test_it_is_left_once_it_is_further_behind_than_four_times_what_that_saves(
    backlog: int, chosen: str
) -> None:
    prefixes, idle, holder = HeldPrefixes(), prefill("a"), prefill("b", backlog=backlog)
    prefixes.send(holder, prompt(BLOCKS[:7]))
    assert choose(prefixes, idle, holder).key == chosen


@pytest.mark.promise("S5-255")
def test_a_shorter_beginning_on_a_worker_with_less_to_do_may_be_better() -> None:
    prefixes = HeldPrefixes()
    full, some, none = prefill("a", backlog=1_600), prefill("b", backlog=200), prefill("c")
    prefixes.send(full, PROMPT)
    prefixes.send(some, prompt(BLOCKS[:5]))
    assert choose(prefixes, full, some, none).key == "b"


@pytest.mark.promise("S5-255")
def test_whoever_is_further_behind_is_asked_where_its_cache_may_be_worth_that() -> None:
    """Though a worker with less to do, which holds less, has been looked at before."""
    prefixes, more, less = HeldPrefixes(), prefill("a", backlog=12 * BLOCK_TOKENS - 1), prefill("b")
    prefixes.send(more, prompt(BLOCKS[:8]))
    prefixes.send(less, prompt(BLOCKS[:5]))
    assert [*index_of(prefixes, more, less).alone.holding(PROMPT, 2)] == [more, less]
    prefixes.send(prefill("c"), PROMPT)  # it has no free slot, so half of the prompt is next
    index = index_of(prefixes, more, less)
    assert [*index.alone.holding(PROMPT, 2)] == [less, more]
    assert choose(prefixes, more, less).key == "a"
    more.tokens = 12 * BLOCK_TOKENS + 1
    assert choose(prefixes, more, less).key == "b"


@pytest.mark.promise("S5-255")
def test_those_that_hold_the_most_of_a_prompt_are_found_among_those_that_hold_some() -> None:
    prefixes, workers = HeldPrefixes(), [prefill(key) for key in "abcdef"]
    for count, each in zip((0, 7, 5, 7, 6, 10), workers, strict=True):
        prefixes.send(each, prompt(BLOCKS[:count]))
    some = index_of(prefixes, *workers[:-1]).alone
    assert {each.key for each in some.holding(PROMPT, 8)} == {*"bcde"}
    assert {each.key for each in some.holding_most(PROMPT, 8)} == {*"bd"}
    assert [each.key for each in index_of(prefixes, workers[-1]).alone.holding_most(PROMPT, 8)] == [
        "f"
    ]
    assert [*some.holding_most(prompt((21, 22)), 8)] == []


@pytest.mark.promise("S5-255")
def test_aggregated_workers_that_hold_a_prompt_are_found_however_many_pairs_do() -> None:
    prefixes, one = HeldPrefixes(), whole("whole")
    prefixes.send(one, PROMPT)
    others = [prefill(f"{number:03}") for number in range(100)]
    for each in others:
        prefixes.send(each, PROMPT)
    assert [*index_of(prefixes, one, whole("empty")).alone.holding(PROMPT, 8)] == [one]
    assert len(index_of(prefixes, *others).alone.holding(PROMPT, 8)) == 8
    assert [len(prefixes.cut(PROMPT, aggregated=each).blocks) for each in (False, True)] == [10, 10]
    prefixes.report(one, told(left=BLOCKS[4:]), 1.0)
    assert [len(prefixes.cut(PROMPT, aggregated=each).blocks) for each in (False, True)] == [10, 4]


@pytest.mark.promise("S5-255")
def test_backlogs_are_compared_for_each_slot() -> None:
    prefixes, small, large = HeldPrefixes(), prefill("a"), prefill("b", capacity=16)
    prefixes.send(small, prompt(BLOCKS[:7]))
    assert choose(prefixes, small, large).key == "b"


@pytest.mark.promise("S5-255")
def test_of_idle_workers_the_one_with_the_emptiest_cache_is_taken() -> None:
    prefixes, workers = HeldPrefixes(), [prefill(key) for key in "abcdef"]
    numbers, policy = itertools.count(1_000), Prefix(random.Random(1).randrange)
    for _ in range(60):
        fresh = prompt([next(numbers) for _ in range(3)])
        prefixes.send(choose(prefixes, *workers, of=fresh, policy=policy), fresh)
    held = [each.held for each in workers]
    assert sum(held) == 180
    assert min(held) >= 24


@pytest.mark.promise("S5-255")
def test_a_session_goes_on_where_it_was_as_long_as_it_costs_less_than_a_block() -> None:
    prefixes, one, other = HeldPrefixes(), prefill("a"), prefill("b")
    first = prompt((), 50, session=7)
    prefixes.send(other, first)
    assert choose(prefixes, one, other, of=first).key == "b"
    other.tokens = BLOCK_TOKENS - 1
    assert choose(prefixes, one, other, of=first).key == "b"
    other.tokens = BLOCK_TOKENS + 1
    assert choose(prefixes, one, other, of=first).key == "a"


@pytest.mark.promise("S5-255")
def test_where_other_routers_use_the_workers_the_least_loaded_is_not_taken_by_all() -> None:
    """Those that hold the prompt, and two at random: by chance any."""
    prefixes, index = HeldPrefixes(), Index(PLAIN, HeldPrefixes())
    for number in range(20):
        one = prefill(f"{number:02}", backlog=number)
        one.other_legs = 1
        index.put(one, one.free)
    policy, seen = Prefix(random.Random(1).randrange), set()
    for _ in range(50):
        seen.add(policy.choose(FreeWorkers([index]), PROMPT).key)
    assert len(seen) > 10
    assert prefixes.count == 0


def shared_holders(count: int, cached: int) -> Counter[str]:
    """Whom 50 requests take of twenty workers that other routers use, where the `count` with the
    least to do hold `cached` blocks of the prompt. Nothing is told of it meanwhile.
    """
    prefixes = HeldPrefixes()
    index = Index(PLAIN, prefixes)
    for number in range(20):
        one = prefill(f"{number:02}", backlog=20 - number)
        one.other_legs = 1
        if number >= 20 - count:
            prefixes.send(one, prompt(BLOCKS[:cached]))
        index.put(one, one.free)
    policy = Prefix(random.Random(1).randrange)
    return Counter(policy.choose(FreeWorkers([index]), PROMPT).key for _ in range(50))


@pytest.mark.promise("S5-255")
@pytest.mark.parametrize("cached", [1, 10], ids=["hardly anything", "all of the prompt"])
def test_where_routers_share_workers_holders_are_not_all_taken_by_the_same_order(
    cached: int,
) -> None:
    """Each router would take the least loaded holder, and learn of the others a second later."""
    seen = shared_holders(20, cached)
    assert len(seen) > 5
    assert max(seen.values()) < 25


@pytest.mark.promise("S5-255")
def test_where_routers_share_workers_only_what_saves_much_is_looked_for() -> None:
    assert set(shared_holders(1, 10)) == {"19"}
    assert shared_holders(1, 3)["19"] == 50
    assert shared_holders(1, 2)["19"] < 25


def test_a_worker_without_a_free_slot_is_not_chosen() -> None:
    prefixes, idle, holder = HeldPrefixes(), prefill("a"), prefill("b", capacity=1)
    prefixes.send(holder, prompt(BLOCKS, session=7))
    holder.take(1, 0)
    assert choose(prefixes, idle, of=prompt(BLOCKS, session=7)).key == "a"


# --- what is booked ---


def started(bench: Bench, first: int, blocks: Sequence[int], **rest: Any) -> list[StartLeg]:
    """The prefill legs that a request of these blocks starts."""
    tokens = len(blocks) * BLOCK_TOKENS + 10
    bench.submit(first, prompt_tokens=tokens, prompt_blocks=tuple(blocks), max_tokens=1, **rest)
    return [each for each in bench.of(StartLeg) if each.worker.startswith("prefill")]


def large(prefill: int, **profile: Any) -> Bench:
    bench = Bench(0, 0, prefill_policy=lambda: Prefix(random.Random(1).randrange))
    for phase, count in ((Phase.PREFILL, prefill), (Phase.DECODE, 2)):
        for index in range(count):
            bench.worker(phase, index, context_length=10_000, **{"max_sequences": 8, **profile})
    return bench


@pytest.mark.promise("S5-254")
def test_a_leg_is_booked_and_told_as_what_its_worker_is_to_compute() -> None:
    bench = large(1)
    first, second = (started(bench, n, BLOCKS)[0] for n in (1, 2))
    assert [first.command.to_compute, second.command.to_compute] == [650, 10]
    assert [sorted(unpacked(each.command.new_blocks)) for each in (first, second)] == [
        [*BLOCKS],
        [],
    ]
    worker = bench.core.state.fleet.workers[first.worker]
    assert worker.tokens == 660
    counts = bench.core.state.counts
    assert (counts.prompt_tokens, counts.cached_tokens) == (1300, 640)
    bench.close(first)
    assert worker.tokens == 10
    decode = [each.command for each in bench.done if isinstance(each, StartLeg)]
    assert all(not each.HasField("to_compute") and not each.new_blocks for each in decode)


@pytest.mark.promise("S5-257")
def test_the_outputs_of_a_request_prefill_once_on_one_worker() -> None:
    bench = large(4, max_sequences=4)
    legs = started(bench, 1, BLOCKS, n=4)
    assert len({each.worker for each in legs}) == 1
    assert [each.command.to_compute for each in legs] == [650, 10, 10, 10]
    legs = started(bench, 11, range(50, 60), n=4)
    assert len({each.worker for each in legs}) == 1


@pytest.mark.promise("S5-257")
def test_outputs_leave_their_worker_once_it_is_further_behind_than_that_saves() -> None:
    bench = large(2, max_sequences=200)
    legs = started(bench, 1, BLOCKS[:1], n=24)
    assert [each.worker == legs[0].worker for each in legs] == [True] * 20 + [False] * 4


def test_outputs_of_a_prompt_that_no_cache_holds_are_spread() -> None:
    bench = large(2, max_sequences=8)
    for key in ("prefill-0", "prefill-1"):
        report = cache_changes(anew=False, entered=(), left=(), keeps_none=True)
        bench.feed(worker_load(key, 0, prompt_tokens=0, cache=report))
    legs = Counter(each.worker for each in started(bench, 1, BLOCKS, n=6))
    assert sorted(legs.values()) == [3, 3]
    legs = Counter(each.worker for each in started(bench, 11, (), n=4))
    assert sorted(legs.values()) == [2, 2]


def test_outputs_that_their_worker_has_no_slot_for_go_elsewhere() -> None:
    bench = large(2, max_sequences=2)
    legs = Counter(each.worker for each in started(bench, 1, BLOCKS, n=4))
    assert sorted(legs.values()) == [2, 2]


@pytest.mark.promise("S5-254")
def test_a_worker_that_connects_anew_holds_nothing_until_it_says_so() -> None:
    bench = large(1)
    (leg,) = started(bench, 1, BLOCKS)
    bench.close(leg)
    bench.worker(Phase.PREFILL, 0, context_length=10_000, max_sequences=8)
    assert bench.core.state.fleet.prefixes.count == 0
    report = cache_changes(anew=True, entered=BLOCKS[:5], left=())
    bench.feed(worker_load(leg.worker, 0, prompt_tokens=0, cache=report))
    assert started(bench, 2, BLOCKS)[0].command.to_compute == 5 * BLOCK_TOKENS + 10


def test_a_worker_without_a_cache_is_sent_what_nobody_expects_to_be_there() -> None:
    bench = large(1)
    report = cache_changes(anew=False, entered=(), left=(), keeps_none=True)
    bench.feed(worker_load("prefill-0", 0, prompt_tokens=0, cache=report))
    assert [started(bench, n, BLOCKS)[0].command.to_compute for n in (1, 2)] == [650, 650]
