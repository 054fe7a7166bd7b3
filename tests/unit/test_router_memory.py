"""What a router holds: tasks that it has let go, and output for peers that do not read, under one
budget; how long tasks are held is in tests/unit/router_traces/memory.txt.
"""

from __future__ import annotations

import pytest
from router_bench import Bench
from router_messages import messages

from tandem.byte_budget import ByteBudget
from tandem.errors import SlowClientError
from tandem.v1 import common_pb2
from tandem_router.core import actions, events
from tandem_router.core.sequences import Request
from tandem_router.generate import Answers
from tandem_router.links import FrontendLink

KIB = 1024


def _request(bench: Bench) -> Request:
    return bench.core.state.frontends[1][1]


@pytest.mark.promise("S5-250")
def test_a_task_is_let_go_as_soon_as_decode_has_its_kv() -> None:
    bench = Bench(memory=100)
    bench.submit(1, task=b"x" * 40)
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(prefill.worker, prefill.leg))
    assert bench.core.budget.held == 40, "it may be run again"
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    assert (bench.core.budget.held, _request(bench).task) == (0, b"")
    bench.close(prefill)
    bench.close(decode)
    assert bench.at_rest()
    assert bench.core.budget.held == 0


@pytest.mark.promise("S5-250", "S6-156")
def test_a_task_that_was_let_go_is_named_by_its_sizes_when_its_worker_dies() -> None:
    bench = Bench()
    bench.submit(1, task=b"x" * 40)
    _, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.feed(events.WorkerDown(decode.worker, "gone"))
    (died,) = bench.of(actions.WorkerDied)
    assert [each.let_go_bytes for each in died.suspects] == [40]


# --- output that is not read ----------------------------------------------------------------------


@pytest.mark.promise("S6-189")
async def test_where_backlogs_find_no_room_the_frontend_that_holds_most_is_given_up() -> None:
    budget = ByteBudget(1000 * KIB)
    links = [FrontendLink(10_000 * KIB, budget, clock=lambda: 0.0) for _ in range(3)]
    for link, size in zip(links, (300, 500, 100), strict=True):
        link.add_payload(1, b"x" * size * KIB)
    assert budget.held == 900 * KIB
    links[2].add_payload(1, b"x" * 150 * KIB)
    assert [link.failure is not None for link in links] == [False, True, False]
    assert isinstance(links[1].failure, SlowClientError)
    assert links[1].over.is_set()
    assert budget.held == 550 * KIB
    links[1].add_payload(1, b"x" * 500 * KIB)
    links[1].add_end(actions.EndSequence(1, 7, None))
    assert links[1]._take() is None, "nothing more is kept of it"
    for link in (links[0], links[2]):
        await anext(link.outbox.messages())
    assert budget.held == 0


async def test_what_a_frontend_reads_in_time_takes_nothing_of_the_budget() -> None:
    budget = ByteBudget(100 * KIB)
    link = FrontendLink(10_000 * KIB, budget)
    for _ in range(100):
        link.add_payload(1, b"x" * 60 * KIB)
        assert budget.held == 0
        await anext(link.outbox.messages())


@pytest.mark.promise("S6-187")
async def test_a_large_backlog_is_given_back_as_it_leaves_and_all_of_it_with_its_frontend() -> None:
    budget = ByteBudget(100 * KIB * KIB)
    link = FrontendLink(50 * KIB * KIB, budget)
    for _ in range(9):
        link.add_payload(1, b"x" * KIB * KIB)
    following, left = messages(link), 9
    for _ in range(2):
        left -= len((await anext(following)).payload) // (KIB * KIB)
        assert budget.held == left * KIB * KIB
    assert left
    link.gone()
    assert budget.held == 0


@pytest.mark.promise("S6-187", "S6-189")
async def test_a_generate_call_counts_what_its_client_has_not_read() -> None:
    budget = ByteBudget(1_000)
    answers, other = Answers(1, 10_000, budget), Answers(1, 10_000, budget)
    rows = [
        common_pb2.TokenColumns(
            sequence=[1], offset=[offset], token_count=[1], text=["x" * 400]
        ).SerializeToString()
        for offset in range(3)
    ]
    for each in (answers, other):
        each.add_run(1, 7)
    answers.add_payload(7, rows[0])
    held = budget.held
    assert held >= 400
    responses = answers.responses()
    await anext(responses)
    assert budget.held == held, "it may be on its way for long"
    answers.add_payload(7, rows[1])
    await anext(responses)
    assert budget.held == held
    other.add_payload(7, rows[0])
    other.add_payload(7, rows[1])  # no room: it holds the most
    with pytest.raises(SlowClientError):
        await anext(other.responses())
    answers.gone()
    assert budget.held == 0
