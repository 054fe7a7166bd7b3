"""Which of several routers a request goes to, and what they serve together."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from test_frontend_dispatch import Bench, sent

from tandem.errors import DrainingError, RouterLostError
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2, worker_pb2

FOREVER = 1e6
WAITS = {"pairs": 0, "waits": True}


class Draws:
    """What is drawn next, and else the lowest."""

    def __init__(self) -> None:
        self.next: list[int] = []

    def __call__(self, below: int) -> int:
        drawn = self.next.pop(0) if self.next else 0
        assert drawn < below
        return drawn


@pytest.fixture
def draws() -> Draws:
    return Draws()


@pytest.fixture
async def bench(draws: Draws) -> Any:
    with ExitStack() as stack:
        yield Bench(stack, max_open=10_000, draw=draws)


def went(bench: Bench, *routers: RouterStream, **fields: Any) -> int:
    """To which of the routers the next request goes."""
    state = bench.ask(**fields)
    (place,) = [place for place, router in enumerate(routers) if state.base in router.open]
    return place


def silent(router: RouterStream) -> None:
    class Overdue:
        seconds = 2.5

    router.silence = Overdue()  # type: ignore[assignment]


@pytest.mark.promise("S5-280")
async def test_it_is_the_better_of_two_at_random_and_not_the_best_of_all(
    bench: Bench, draws: Draws
) -> None:
    """Else all frontends would send to the same router until it says more."""
    routers = bench.router(free=5), bench.router(free=99), bench.router(free=9)
    draws.next = [0, 1]
    assert went(bench, *routers) == 2
    draws.next = [2, 0]
    assert went(bench, *routers) == 2
    draws.next = [0, 0]
    assert went(bench, *routers) == 1


@pytest.mark.promise("S5-280")
async def test_what_was_sent_since_takes_of_the_room_until_the_router_says_more(
    bench: Bench,
) -> None:
    routers = bench.router(free=4), bench.router(free=3)
    prompts = [SubmittedPrompt.of([1], max_tokens=1)] * 2
    assert went(bench, *routers, prompts=prompts, n=2) == 0
    assert [went(bench, *routers) for _ in range(3)] == [1, 1, 1]
    bench.fleet(routers[0], free=2)
    assert [went(bench, *routers) for _ in range(2)] == [0, 0]


@pytest.mark.promise("S5-280")
async def test_all_prompts_of_a_request_go_to_one_router(bench: Bench) -> None:
    routers = bench.router(free=1), bench.router(free=1)
    bench.ask(prompts=[SubmittedPrompt.of([1], max_tokens=1)] * 6)
    assert sorted(len(sent(each)) for each in routers) == [0, 6]


@pytest.mark.promise("S5-280")
async def test_where_no_router_has_room_the_least_waits_where_it_goes(
    bench: Bench, draws: Draws
) -> None:
    routers = bench.router(free=-7), bench.router(free=-9), bench.router(free=-1)
    draws.next = [0, 0]
    assert went(bench, *routers) == 2
    bench.fleet(routers[1], free=3)
    draws.next = [0, 1]
    assert went(bench, *routers) == 1, "two without room were drawn, and another has some"


@pytest.mark.promise("S5-280")
async def test_a_router_that_says_no_room_counts_as_having_some(bench: Bench, draws: Draws) -> None:
    """It is older than the field."""
    older, newer = bench.router(), bench.router(free=50)
    draws.next = [1, 0, 0]
    assert [went(bench, older, newer) for _ in range(3)] == [1, 0, 0], "where less is open"
    bench.fleet(newer, free=-3)
    draws.next = [1]
    assert went(bench, older, newer) == 0
    other = bench.router(free=-5)
    draws.next = [1, 1]
    assert went(bench, older, newer, other) == 0, "neither of those that were drawn has room"


@pytest.mark.promise("S5-280")
@pytest.mark.parametrize(
    "worse",
    [
        lambda bench, router: bench.fleet(router, pairs=0, free=99),
        lambda bench, router: bench.fleet(router, free=99, **WAITS),
        lambda bench, router: bench.fleet(router, free=99, sha256="another's"),
        lambda bench, router: bench.fleet(router, free=99, longest_context=18),
        lambda bench, router: silent(router),
        lambda bench, router: router.drain(),
    ],
    ids=["no pair", "it waits for one", "another edition", "shorter contexts", "silent", "drains"],
)
async def test_a_router_that_cannot_run_it_takes_none_while_another_has_no_room(
    bench: Bench, worse: Callable[[Bench, RouterStream], object]
) -> None:
    routers = bench.router(free=99), bench.router(free=-50)
    worse(bench, routers[0])
    assert went(bench, *routers) == 1


@pytest.mark.promise("S5-280")
async def test_a_request_goes_where_its_logits_processors_are_known(bench: Bench) -> None:
    one = bench.router(free=99, logits_processors=["mine"])
    other = bench.router(free=-5, any_logits_processors=["mine", "theirs"])
    spec = common_pb2.LogitsSpec(processors=[common_pb2.LogitsProcessor(name="theirs")])
    assert went(bench, one, other, logits=spec) == 1
    assert went(bench, one, other) == 0


@pytest.mark.promise("S5-280")
async def test_routers_that_all_have_something_against_them_are_used_still(bench: Bench) -> None:
    one, other = bench.router(free=1), bench.router(free=1)
    bench.fleet(one, pairs=0, free=0)
    bench.fleet(other, pairs=0, free=0)
    assert went(bench, one, other) == 0
    bench.fleet(one, sha256="another's")
    bench.fleet(other, sha256="another's")
    assert went(bench, one, other) == 0
    bench.fleet(other, free=1)
    silent(other)
    assert went(bench, one, other) == 1


@pytest.mark.promise("S5-280")
async def test_frontends_that_know_the_same_do_not_herd() -> None:
    """Each of 200 frontends sends one request, on what all of them heard a moment ago."""
    taken = [0, 0, 0, 0]
    for seed in range(200):
        with ExitStack() as stack:
            bench = Bench(stack, draw=random.Random(seed).randrange)
            routers = [bench.router(free=free) for free in (100, 101, 120, 100)]
            taken[went(bench, *routers)] += 1
    assert taken[2] == max(taken) < 120
    assert min(taken) > 10


# --- what comes of the others ---------------------------------------------------------------------


@pytest.mark.promise("S5-281")
@pytest.mark.parametrize("drained", [False, True])
async def test_what_never_left_for_a_lost_router_goes_to_another(
    bench: Bench, drained: bool
) -> None:
    lost, other = bench.router(free=9), bench.router(free=1)
    begun, unsent, elsewhere = _three(bench, lost, other)
    if drained:
        bench.demultiplexer.unsent(lost.drain())
        assert sent(other) == [elsewhere.base, unsent.base]
    bench.demultiplexer.ended(lost, drained=False)
    if not drained:
        assert sent(other) == [elsewhere.base, unsent.base]
    assert begun.error is not None
    assert begun.error.code == "router_lost"
    assert (unsent.error, elsewhere.error) == (None, None)


def _three(bench: Bench, lost: RouterStream, other: RouterStream) -> Iterator[RequestState]:
    """What has left for the one router, what has not, and what goes to the other."""
    begun = bench.ask()
    assert sent(lost) == [begun.base]
    bench.begin(lost, begun)
    unsent = bench.ask()
    assert unsent.base in lost.open
    bench.fleet(other, free=99)
    elsewhere = bench.ask()
    assert elsewhere.base in other.open
    return iter((begun, unsent, elsewhere))


@pytest.mark.promise("S5-281")
async def test_a_refusal_of_a_router_that_drains_goes_to_another(bench: Bench) -> None:
    drains, other = bench.router(free=9), bench.router(free=1)
    state = bench.ask()
    assert sent(drains) == [state.base]
    drains.drain()
    error = DrainingError("it drains").to_proto()
    end = router_pb2.SequenceEnd(sequence=state.base, error=error)
    bench.demultiplexer.receive(drains, router_pb2.RouterMessage(ends=[end]))
    assert sent(other) == [state.base]
    assert state.error is None


@pytest.mark.promise("S5-281")
async def test_a_cancel_goes_to_the_router_that_has_the_request(bench: Bench) -> None:
    one, other = bench.router(free=9), bench.router(free=1)
    state = bench.ask()
    assert sent(one) == [state.base]
    bench.client.lose()
    message = one._take()
    assert message is not None
    assert message.cancel == [state.base]
    assert other._take() is None


@pytest.mark.promise("S5-281")
async def test_a_frontend_is_ready_as_long_as_some_router_serves_its_model(bench: Bench) -> None:
    one, other = bench.router(pairs=0), bench.router()
    assert bench.demultiplexer.ready
    bench.fleet(other, pairs=0)
    assert not bench.demultiplexer.ready
    bench.fleet(one, pairs=1)
    assert bench.demultiplexer.ready
    bench.demultiplexer.ended(other, drained=False)
    assert bench.demultiplexer.ready
    bench.demultiplexer.unsent(one.drain())
    assert not bench.demultiplexer.ready


@pytest.mark.promise("S5-281")
async def test_what_is_served_is_what_some_router_can_and_what_all_can(bench: Bench) -> None:
    one = bench.router(
        pairs=2,
        limits=worker_pb2.Limits(max_sequences=8, context_length=100, vocabulary=50),
        longest_context=200,
        logits_processors=["a", "b"],
        any_logits_processors=["a", "b", "c"],
    )
    other = bench.router(
        pairs=1,
        limits=worker_pb2.Limits(max_sequences=4, context_length=300, vocabulary=60),
        logits_processors=["b", "d"],
    )
    served = await bench.route.served_model(bench.client, None)
    limits = served.limits
    assert (limits.max_sequences, limits.context_length, limits.vocabulary) == (4, 100, 50)
    assert served.longest_context == 300
    assert served.logits_processors == ["b"]
    assert served.any_logits_processors == ["a", "b", "c", "d"]
    bench.fleet(other, pairs=0, limits=worker_pb2.Limits(context_length=70))
    served = await bench.route.served_model(bench.client, None)
    assert (served.limits.context_length, served.longest_context) == (100, 200)
    bench.fleet(one, pairs=0)
    assert (await bench.route.served_model(bench.client, None)).ready_pairs == 0


@pytest.mark.promise("S5-281")
async def test_limits_that_a_router_does_not_say_are_nobody_s(bench: Bench) -> None:
    bench.router()
    bench.router(limits=worker_pb2.Limits(context_length=300))
    served = await bench.route.served_model(bench.client, None)
    assert served.limits.context_length == 300
    assert served.limits.vocabulary == 0


@pytest.mark.promise("S5-281")
async def test_a_lost_router_s_limits_are_forgotten_while_another_is_used(bench: Bench) -> None:
    bench.router(limits=worker_pb2.Limits(context_length=300))
    lost = bench.router(limits=worker_pb2.Limits(context_length=100))
    bench.demultiplexer.ended(lost, drained=False)
    served = await bench.route.served_model(bench.client, None)
    assert served.limits.context_length == 300


@pytest.mark.promise("S5-281")
async def test_a_pair_of_a_router_that_drains_is_nobody_s(bench: Bench) -> None:
    """What comes before the first router with a pair goes on waiting for another."""
    drains = bench.router(pairs=0)
    drains.drain()
    bench.fleet(drains, pairs=1)
    with pytest.raises(RouterLostError):
        await bench.route.served_model(bench.client, 0.05)
