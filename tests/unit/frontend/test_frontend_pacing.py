"""What waited for a router goes to it as it has room, and is not refused for coming all at once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pytest
from test_frontend_dispatch import Bench, sent

from tandem.errors import EngineError, NoPairError, QueueFullError, RouterLostError, TandemError
from tandem.upstream import dispatch
from tandem.upstream.dispatch import FIRST_BATCH, LEAST_BATCH
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream
from tandem.v1 import common_pb2, router_pb2

WAIT = 1e6
"""Longer than any test takes."""
FULL = QueueFullError("it is full")


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Batches follow each other when a test says so."""
    monkeypatch.setattr(dispatch, "BATCH_SECONDS", 3600.0)
    with ExitStack() as stack:
        yield Bench(stack, max_open=5_000, wait=WAIT)


def batch(bench: Bench, stream: RouterStream) -> list[int]:
    """What leaves for a router when it is time for the next batch, if one is to come."""
    dispatcher = bench.route.dispatcher
    if timer := dispatcher._next_batch:
        timer.cancel()
        dispatcher._send_next()
    return [each for message in iter(lambda: sent(stream), []) for each in message]


def refuse(
    bench: Bench,
    stream: RouterStream,
    numbers: Iterable[int],
    error: TandemError = FULL,
    *,
    refused: bool = True,
) -> None:
    ends = [
        router_pb2.SequenceEnd(sequence=number, error=error.to_proto(), refused=refused)
        for number in numbers
    ]
    bench.demultiplexer.receive(stream, router_pb2.RouterMessage(ends=ends))


def bases(states: Iterable[RequestState]) -> list[int]:
    return [each.base for each in states]


@pytest.mark.promise("S5-222")
async def test_what_waited_leaves_in_batches_that_grow_in_the_order_of_arrival(
    bench: Bench,
) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH * 3 + 1)]
    router = bench.router()
    assert sent(router) == bases(states[:FIRST_BATCH])
    late = bench.ask()
    assert sent(router) == [late.base], "what comes while a router takes requests waits for nobody"
    assert batch(bench, router) == bases(states[FIRST_BATCH : FIRST_BATCH * 3])
    assert batch(bench, router) == bases(states[FIRST_BATCH * 3 :])


@pytest.mark.promise("S5-222")
async def test_what_had_no_room_is_sent_again_in_its_turn_and_less_at_once(bench: Bench) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH * 2)]
    assert bench.waiting == {"router": FIRST_BATCH * 2}
    router = bench.router()
    assert len(sent(router)) == FIRST_BATCH
    refuse(bench, router, reversed(bases(states[100:FIRST_BATCH])))
    assert bench.waiting == {"room": FIRST_BATCH * 2 - 100}
    assert batch(bench, router) == bases(states[100 : 100 + FIRST_BATCH // 2])
    assert not any(each.error for each in states)
    assert len(batch(bench, router)) == FIRST_BATCH * 2 - 100 - FIRST_BATCH // 2, "twice as many"


@pytest.mark.promise("S5-222")
async def test_three_thousand_that_waited_all_run_where_a_third_has_room(
    bench: Bench,
) -> None:
    """As after the restart of a router: 429 was the answer to two of three."""
    states = {each.base: each for each in (bench.ask(timeout_seconds=1e9) for _ in range(3_000))}
    router = bench.router()
    room, runs = 1_000, []
    arrived = sent(router)
    while arrived:
        runs += arrived[:room]
        refuse(bench, router, arrived[room:])
        room = max(0, room - len(arrived)) + 50  # so many end each time
        arrived = batch(bench, router)
    assert sorted(runs) == sorted(states)
    assert runs == sorted(runs), "nobody is overtaken"
    assert not any(each.error for each in states.values())


async def test_some_are_always_tried(bench: Bench) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH)]
    router = bench.router()
    arrived = sent(router)
    for _ in range(10):
        refuse(bench, router, arrived)
        arrived = batch(bench, router)
    assert arrived == bases(states[:LEAST_BATCH])


@pytest.mark.promise("S5-222")
async def test_what_has_no_room_until_its_patience_ends_is_refused(bench: Bench) -> None:
    now = 0.0
    bench.route.dispatcher._clock = lambda: now  # type: ignore[method-assign]
    state = bench.ask(timeout_seconds=1e9)
    router = bench.router()
    sent(router)
    now = WAIT - 1
    refuse(bench, router, [state.base])
    assert state.error is None
    assert batch(bench, router) == [state.base]
    now = WAIT
    refuse(bench, router, [state.base])
    assert isinstance(state.error, QueueFullError)


async def test_what_waits_for_room_too_long_says_so(bench: Bench) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH + 1)]
    router = bench.router()
    sent(router)
    waits = states[-1]
    assert waits.dispatch.patience is not None
    bench.route.dispatcher._give_up(waits, overdue=False)
    assert isinstance(waits.error, QueueFullError)


async def test_what_did_not_wait_is_refused_at_once(bench: Bench) -> None:
    router = bench.router()
    state = bench.ask()
    sent(router)
    refuse(bench, router, [state.base])
    assert isinstance(state.error, QueueFullError)


@pytest.mark.parametrize(
    ("error", "refused"),
    [(FULL, False), (EngineError("it broke"), True), (EngineError("x"), False)],
)
async def test_what_may_have_begun_or_has_another_fault_is_not_sent_again(
    bench: Bench, error: TandemError, refused: bool
) -> None:
    state = bench.ask()
    router = bench.router()
    sent(router)
    refuse(bench, router, [state.base], error, refused=refused)
    assert isinstance(state.error, type(error))
    assert batch(bench, router) == []


@pytest.mark.promise("S5-250")
async def test_what_has_output_and_is_refused_all_the_same_is_not_sent_again(bench: Bench) -> None:
    state = bench.ask()
    router = bench.router()
    assert sent(router) == [state.base]
    columns = common_pb2.TokenColumns(
        sequence=[state.base], offset=[0], token_count=[1], text=["y"]
    )
    message = router_pb2.RouterMessage(payload=columns.SerializeToString())
    bench.demultiplexer.receive(router, message)
    refuse(bench, router, [state.base])
    assert isinstance(state.error, QueueFullError), "its prompt was let go"
    assert batch(bench, router) == []


async def test_a_prompt_is_sent_again_once_all_its_outputs_are_refused(bench: Bench) -> None:
    """The router would still know the others."""
    state = bench.ask(n=3)
    router = bench.router()
    sent(router)
    for _ in range(2):
        refuse(bench, router, [state.base, state.base + 1])
        assert batch(bench, router) == []
        refuse(bench, router, [state.base + 2])
        assert batch(bench, router) == [state.base]
    assert state.error is None


NO_PAIR = NoPairError("no pair has come")


async def test_what_a_router_has_no_pair_for_goes_to_one_that_has(bench: Bench) -> None:
    """What the first one says of its fleet is a moment old."""
    first = bench.router(free=2)
    state = bench.ask(n=2)
    assert sent(first) == [state.base]
    other = bench.router(free=1)
    refuse(bench, first, [state.base], NO_PAIR)
    assert sent(other) == [], "the first one still knows the other output"
    refuse(bench, first, [state.base + 1], NO_PAIR)
    assert (sent(first), sent(other)) == ([], [state.base])
    assert state.error is None
    refuse(bench, other, [state.base, state.base + 1], NO_PAIR)
    assert sent(first) == [state.base], "by now it says that it has one"


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        ([], True),
        ([{"pairs": 0, "waits": True}], True),
        ([{"longest_context": 1}], True),
        ([{"sha256": "another"}], True),
        ([{}], False),
    ],
)
async def test_what_no_router_has_a_pair_for_or_has_begun_ends(
    bench: Bench, others: list[dict[str, Any]], refused: bool
) -> None:
    router = bench.router()
    state = bench.ask()
    sent(router)
    streams = [bench.router(**said) for said in others]
    refuse(bench, router, [state.base], NO_PAIR, refused=refused)
    assert isinstance(state.error, NoPairError)
    assert [sent(each) for each in streams] == [[]] * len(streams)


async def test_what_waits_for_room_goes_to_another_router_that_comes(bench: Bench) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH * 2)]
    full = bench.router()
    assert sent(full) == bases(states[:FIRST_BATCH])
    other = bench.router()
    assert sent(other) == bases(states[FIRST_BATCH:])
    assert batch(bench, full) == []
    assert batch(bench, other) == []


async def test_what_waits_for_room_waits_for_a_router_where_its_own_goes(bench: Bench) -> None:
    states = [bench.ask() for _ in range(FIRST_BATCH + 1)]
    lost = bench.router()
    sent(lost)
    for state in states[:FIRST_BATCH]:
        bench.begin(lost, state)
    bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(states[0].error, RouterLostError), "it had begun"
    assert batch(bench, lost) == []
    assert states[-1].error is None
    assert sent(bench.router()) == [states[-1].base]


async def test_who_leaves_while_there_is_no_room_leaves_nothing(bench: Bench) -> None:
    state = bench.ask()
    router = bench.router()
    sent(router)
    refuse(bench, router, [state.base])
    state.fail(RouterLostError("the client went"))
    assert batch(bench, router) == []
    assert router._take() is None, "the router has forgotten it: a cancel would be of nothing"
    assert not bench.route.dispatcher._waiting
