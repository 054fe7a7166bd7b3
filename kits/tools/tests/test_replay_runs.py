"""`tandem replay`: the router's real cores in virtual time, on fleets small enough to work out."""

from __future__ import annotations

import random
from statistics import median

import pytest

from tandem_router.core.values import Reason, Way
from tandem_router.policies import POLICIES
from tandem_tools.bench.figures import TimedAnswer
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay.fleet import RESTART_SECONDS, FleetFile, ReplayedPool
from tandem_tools.trace_replay.generator import generate
from tandem_tools.trace_replay.replay import Replayed, TraceReplay
from tandem_tools.trace_replay.router import LINK_SECONDS, Policies
from tandem_tools.trace_replay.times import Times

TIMES = Times(
    prefill_ms=((0, 0.0), (1000, 1000.0)),
    step_ms=((1, 10.0),),
    transfer_ms=((0, 0.0), (1000, 100.0)),
    overhead_ms=5.0,
)
"""A prompt token takes 1 ms and a tenth of that to move; a step 10 ms."""
LINKS = 2 * LINK_SECONDS
"""To the worker and back."""
FAST = Times(prefill_ms=((0, 0.0), (20_480, 1000.0)), step_ms=((1, 10.0), (100, 20.0)))

FAST_WITH_HAND_OVER = Times(
    prefill_ms=FAST.prefill_ms, step_ms=FAST.step_ms, transfer_ms=((0, 20.0), (1000, 21.0))
)


def fleet(table: Times = TIMES, **values: object) -> FleetFile:
    pools: dict[str, object] = {
        "prefill": ReplayedPool(workers=1),
        "decode": ReplayedPool(workers=1),
    }
    return FleetFile(times=table, **{**pools, **values})  # type: ignore[arg-type]


def run(
    fleet: FleetFile, trace: tuple[TracedRequest, ...], policy: str = "least_loaded"
) -> Replayed:
    chosen = POLICIES[policy]
    return TraceReplay(fleet, Policies(chosen, POLICIES["least_loaded"]), trace).run()


def prompts(*lengths: int, output: int = 11, apart: float = 0.0) -> tuple[TracedRequest, ...]:
    """Prompts that come `apart` ms from each other."""
    return tuple(TracedRequest(place * apart, each, output) for place, each in enumerate(lengths))


def ttft(answers: tuple[TimedAnswer, ...]) -> list[float]:
    return [each.ttft for each in answers if each.ttft is not None]


def p90(found: Replayed) -> float:
    values = sorted(ttft(found.answers))
    return values[len(values) * 9 // 10]


@pytest.mark.promise("S5-755")
def test_a_run_says_about_a_hundred_times_which_share_of_its_requests_has_ended() -> None:
    heard: list[float] = []
    least = POLICIES["least_loaded"]
    trace = prompts(*[10] * 1000, apart=50.0)
    TraceReplay(fleet(), Policies(least, least), trace).run(heard.append)
    assert len(heard) == 100
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    assert heard[0] == pytest.approx(0.01)


@pytest.mark.promise("S5-360")
def test_a_request_alone_takes_overhead_prefill_hand_over_and_a_step_for_each_token() -> None:
    (answer,) = run(fleet(), prompts(100)).answers
    assert answer.failure == ""
    assert answer.ttft == pytest.approx(0.005 + LINKS + 0.100 + 0.010)
    assert answer.itl == pytest.approx(0.010)
    assert answer.output_tokens == 11


def test_an_output_of_one_token_has_no_time_between_tokens() -> None:
    (answer,) = run(fleet(), prompts(100, output=1)).answers
    assert (answer.output_tokens, answer.itl, answer.failure) == (1, None, "")


def test_prompts_wait_for_those_before_them_and_hand_overs_do_not() -> None:
    first, second = run(fleet(), prompts(100, 50)).answers
    assert first.ttft == pytest.approx(0.005 + LINKS + 0.100 + 0.010)
    assert second.ttft == pytest.approx(0.005 + LINKS + 0.150 + 0.005)


def test_a_sequence_waits_in_the_router_for_a_slot() -> None:
    small = fleet(decode=ReplayedPool(workers=1, slots=1))
    first, second = run(small, prompts(100, 50)).answers
    ended = first.ended - first.began  # then its slot is free again
    assert second.ttft == pytest.approx(ended + LINKS + 0.050 + 0.005, abs=0.002)


def test_a_sequence_waits_for_kv_memory_and_one_that_could_never_fit_is_let_in_alone() -> None:
    small = fleet(decode=ReplayedPool(workers=1, kv_tokens=120))
    first, second, huge = run(small, prompts(100, 50, 500)).answers
    ended = first.ended - first.began
    assert second.ttft == pytest.approx(ended + 0.005, abs=0.002), "computed, and not yet moved"
    assert huge.failure == ""
    assert ttft((huge,))[0] > second.ended


def test_what_the_queue_has_no_place_for_is_refused_and_goes_to_the_next_router() -> None:
    small = fleet(decode=ReplayedPool(workers=1, slots=1), max_queue=1)
    refused = [each.failure for each in run(small, prompts(*[100] * 5)).answers]
    assert sorted(refused) == ["", "", "queue_full", "queue_full", "queue_full"]
    two = fleet(decode=ReplayedPool(workers=1, slots=1), max_queue=1, routers=2)
    refused = [each.failure for each in run(two, prompts(*[100] * 5)).answers]
    assert refused.count("queue_full") == 2, "each router has a place of its own"
    many = fleet(decode=ReplayedPool(workers=1, slots=1), max_queue=1, routers=8)
    refused = [each.failure for each in run(many, prompts(*[100] * 9)).answers]
    assert refused.count("queue_full") <= 1, "one runs, and each router has a place of its own"


def test_a_request_that_takes_too_long_fails_and_leaves_its_place_to_others() -> None:
    hasty = fleet(decode=ReplayedPool(workers=1, slots=1), timeout_seconds=1.0)
    answers = run(hasty, prompts(100, 5_000, 100, 100, apart=2_500)).answers
    # The third one comes at 5 s, while the engine is still at the long prompt that nobody wants.
    assert [each.failure for each in answers] == ["", *["deadline_exceeded"] * 2, ""]


def test_a_worker_that_another_router_has_filled_refuses_and_the_sequence_is_tried_again() -> None:
    shared = fleet(
        prefill=ReplayedPool(workers=2, slots=1), decode=ReplayedPool(workers=1, slots=8), routers=2
    )
    found = run(shared, prompts(*[100] * 12, apart=20))
    assert [each.failure for each in found.answers] == [""] * 12


def test_what_a_cache_has_is_not_computed_again() -> None:
    cached = fleet(prefill=ReplayedPool(workers=1, cache_tokens=100_000))
    blocks = tuple(range(4))
    trace = tuple(TracedRequest(at, 2_000, 2, blocks) for at in (0.0, 10_000.0))
    found = run(cached, trace)
    first, second = ttft(found.answers)
    assert first == pytest.approx(0.005 + LINKS + 2.0 + 0.2)
    # 31 whole blocks of 64 tokens are there, 16 tokens are computed, and all of it moves.
    assert second == pytest.approx(0.005 + LINKS + 0.016 + 0.2)
    assert found.hit_rate == pytest.approx(1984 / 4000)


def test_an_aggregated_worker_hands_nothing_over_and_lets_others_wait_while_it_computes() -> None:
    alone = fleet(
        prefill=ReplayedPool(),
        decode=ReplayedPool(),
        aggregated=ReplayedPool(workers=1, chunk_tokens=1_000),
    )
    first, second = run(alone, prompts(100, 400, output=21, apart=150)).answers
    assert first.ttft == pytest.approx(0.005 + LINKS + 0.100)
    assert first.itl == pytest.approx(0.010 + 0.400 / 20), "it waited for the second prompt"
    assert ttft((second,))[0] == pytest.approx(0.005 + LINKS + 0.410, abs=0.011)


def test_aggregated_workers_share_the_load_and_each_goes_on_by_itself() -> None:
    two = fleet(prefill=ReplayedPool(), decode=ReplayedPool(), aggregated=ReplayedPool(workers=2))
    first, second = ttft(run(two, prompts(400, 400)).answers)
    assert first == second


def test_short_prompts_go_where_they_are_done_earlier_and_long_ones_to_pairs() -> None:
    both = fleet(FAST_WITH_HAND_OVER, aggregated=ReplayedPool(workers=1))
    trace = prompts(*[100, 100, 100, 20_000] * 40, output=200, apart=700)
    found = run(both, trace, "prefix")
    aggregated = sum(n for (way, _), n in found.ways.items() if way is Way.AGGREGATED)
    assert found.ways[Way.PAIR, Reason.EARLIEST] > 20
    assert 20 < aggregated < len(trace)
    assert sum(found.ways.values()) == len(trace)
    never = run(
        fleet(FAST_WITH_HAND_OVER, aggregated=ReplayedPool(workers=1), disaggregate="never"), trace
    )
    assert never.ways[Way.AGGREGATED, Reason.SETTING] > 0.9 * len(trace)


@pytest.mark.promise("S5-361")
def test_the_same_seed_gives_the_same_and_the_policies_own_draws_are_among_it() -> None:
    trace = generate("chat", requests=300, rate=8.0, seed=3)
    shared = fleet(FAST, prefill=ReplayedPool(workers=3, cache_tokens=100_000), routers=2)
    one, other = run(shared, trace, "prefix"), run(shared, trace, "prefix")
    assert one == other


@pytest.mark.promise("S5-363")
@pytest.mark.parametrize("kind", ["chat", "shared", "mixed"])
def test_prefix_is_nowhere_worse_than_the_least_load_by_more_than_a_hundredth(kind: str) -> None:
    """At about 70 % of what prefill can do."""
    trace = generate(
        kind, requests=1_500, rate={"chat": 20, "shared": 15, "mixed": 35}[kind], seed=1
    )
    many = fleet(
        FAST, prefill=ReplayedPool(workers=4, cache_tokens=307_200), decode=ReplayedPool(workers=4)
    )
    prefix, load = run(many, trace, "prefix"), run(many, trace, "least_loaded")
    assert p90(prefix) <= 1.01 * p90(load)
    assert median(ttft(prefix.answers)) <= 1.01 * median(ttft(load.answers))
    assert prefix.hit_rate >= load.hit_rate
    if kind == "shared":
        assert prefix.hit_rate > load.hit_rate + 0.3
        assert p90(prefix) < p90(load) / 2


def questions(documents: int, *, rate: float) -> tuple[TracedRequest, ...]:
    """Three to each document of 12,288 tokens, some two seconds apart."""
    chance, began = random.Random(1), 0.0
    found: list[TracedRequest] = []
    for document in range(documents):
        began = at = began + chance.expovariate(rate / 3)
        blocks = tuple(range(document * 100, document * 100 + 24))
        for number in range(3):
            own = 10**7 + 10 * document + number
            found.append(TracedRequest(at * 1000, 12_388, 2, (*blocks, own)))
            at += chance.expovariate(0.5)
    return tuple(sorted(found, key=lambda each: each.timestamp))


@pytest.mark.promise("S5-401")
def test_eight_routers_know_of_prompts_that_wait_as_one_does() -> None:
    """Prompts wait for a second: the next question to a document comes before its first is done."""
    trace = questions(150, rate=14.0)
    one, eight = (
        run(
            fleet(FAST, prefill=ReplayedPool(workers=6, cache_tokens=307_200), routers=routers),
            trace,
            "prefix",
        )
        for routers in (1, 8)
    )
    assert eight.hit_rate > one.hit_rate - 0.03
    assert p90(eight) < 1.5 * p90(one)


@pytest.mark.promise("S5-363")
def test_one_two_and_eight_routers_find_about_as_much_in_caches() -> None:
    trace = generate("shared", requests=1_500, rate=30.0, seed=1)
    rates = [
        run(
            fleet(FAST, prefill=ReplayedPool(workers=8, cache_tokens=307_200), routers=routers),
            trace,
            "prefix",
        ).hit_rate
        for routers in (1, 2, 8)
    ]
    assert max(rates) - min(rates) < 0.03


@pytest.mark.promise("S5-640")
def test_a_router_in_a_killed_ones_place_knows_again_what_is_cached_where() -> None:
    """Each conversation has a beginning of its own, of which six in seven prompts are the rest."""
    trace = tuple(
        TracedRequest(10_000.0 * turn + 40.0 * number, 2048, 2, range(4 * number, 4 * number + 4))
        for turn in range(6)
        for number in range(20)
    )
    pool = ReplayedPool(workers=4, cache_tokens=20 * 2048)
    values = {"routers": 3, "prefill": pool}
    calm = run(fleet(FAST, **values), trace, "prefix")
    found = run(fleet(FAST, **values, router_kill_seconds=10.02), trace, "prefix")
    assert found.ideal_hit_rate == calm.ideal_hit_rate == pytest.approx(5 / 6, abs=0.001)
    assert found.hit_rate >= 0.95 * found.ideal_hit_rate
    lost = {each.failure for each in found.answers} - {""}
    assert lost <= {"router_lost"}


def test_what_a_killed_router_had_is_lost_and_its_workers_let_go_of_it() -> None:
    small = fleet(decode=ReplayedPool(workers=1, slots=1), router_kill_seconds=10.0, routers=2)
    first, second = run(small, prompts(30_000, 100, apart=41_000)).answers
    assert first.failure == "router_lost"
    assert first.ended - first.began < 21.0
    assert second.failure == "", "the only slot is free again"


def test_while_its_only_router_is_away_a_request_waits() -> None:
    alone = fleet(router_kill_seconds=100.0)
    early, late = run(alone, prompts(100, 100, apart=101_000)).answers
    assert (early.failure, late.failure) == ("", "")
    assert RESTART_SECONDS - 1 <= ttft((late,))[0] <= 2 * RESTART_SECONDS
