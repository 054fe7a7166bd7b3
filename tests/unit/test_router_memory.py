"""What a router holds: tasks until their last leg is closed, and output for peers that do not
read, under one budget.
"""

from __future__ import annotations

import pytest
from router_bench import Bench
from router_messages import messages

from tandem.byte_budget import ByteBudget
from tandem.endings import Outcome
from tandem.errors import SlowClientError
from tandem.v1 import common_pb2
from tandem_router.core import actions, events
from tandem_router.core.sequences import Request
from tandem_router.core.values import Phase
from tandem_router.generate import Answers
from tandem_router.links import FrontendLink

KIB = 1024


@pytest.mark.promise("S6-187")
def test_a_request_whose_task_finds_no_room_is_refused_and_holds_nothing() -> None:
    bench = Bench(memory=100)
    bench.submit(1, task=b"x" * 40, n=2)
    bench.submit(3, task=b"x" * 36)
    assert bench.ends() == [(3, "queue_full")]
    assert bench.core.budget.held == 40, "a task counts once, whatever its n"
    bench.submit(4, task=b"x" * 35)
    assert bench.ends() == []
    assert bench.core.budget.held == 75


@pytest.mark.promise("S6-187")
@pytest.mark.parametrize("how", ["unknown model", "full queue", "draining"])
def test_what_is_refused_for_another_reason_holds_nothing(how: str) -> None:
    bench = Bench(max_queue=1)
    if how == "unknown model":
        bench.submit(1, model="other")
    elif how == "full queue":
        bench.submit(1, n=5)
    else:
        bench.feed(events.Drain())
        bench.submit(1)
    assert len(bench.ends()) >= 1
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-187")
@pytest.mark.parametrize("end", ["finished", "cancelled", "frontend gone", "worker lost"])
def test_a_task_is_held_until_the_last_leg_that_runs_it_is_closed(end: str) -> None:
    bench = Bench(memory=100)
    bench.submit(1, task=b"x" * 40)
    prefill, decode = bench.legs()
    if end == "finished":
        bench.close(decode)
    elif end == "cancelled":
        bench.feed(events.Cancel(1, 1))
        bench.close(decode)
    elif end == "frontend gone":
        bench.feed(events.FrontendDown(1))
        bench.close(decode)
    else:
        bench.feed(events.WorkerDown(decode.worker, "gone"))
    assert bench.core.state.open_sequences == 0
    assert bench.core.budget.held == 40, "its other leg may still be sent"
    bench.close(prefill)
    assert bench.core.budget.held == 0


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


@pytest.mark.promise("S5-250")
@pytest.mark.parametrize("last", [1, 2])
def test_a_task_of_several_outputs_is_held_until_none_of_them_may_start(last: int) -> None:
    bench = Bench(memory=100)
    bench.submit(1, n=2, task=b"x" * 40)
    decode = {
        each.command.sequence: each for each in bench.of(actions.StartLeg) if each.command.kv_peer
    }
    bench.feed(events.LegStarted(decode[3 - last].worker, decode[3 - last].leg))
    assert bench.core.budget.held == 40
    bench.feed(events.LegStarted(decode[last].worker, decode[last].leg))
    assert bench.core.budget.held == 0


@pytest.mark.promise("S5-250")
def test_a_task_that_classifiers_may_have_run_again_is_held() -> None:
    bench = Bench(memory=100, decode=0)
    bench.worker(Phase.DECODE, 0, has_hook=True, has_classifiers=True)
    bench.submit(1, task=b"x" * 40)
    for run in range(2):
        prefill, decode = bench.legs()
        bench.feed(events.LegStarted(decode.worker, decode.leg))
        assert (bench.core.budget.held, decode.task) == (40, b"x" * 40)
        bench.close(prefill)
        bench.close(decode, Outcome.REGENERATE if not run else Outcome.FINISHED)
    assert bench.at_rest()
    assert bench.core.budget.held == 0


@pytest.mark.promise("S5-250")
def test_a_worker_without_classifiers_cannot_have_a_task_run_again_that_was_let_go() -> None:
    bench = Bench()
    bench.submit(1, task=b"x" * 40)
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.close(prefill)
    bench.close(decode, Outcome.REGENERATE)
    assert bench.ends() == [(1, "worker_error")]
    assert bench.at_rest()


@pytest.mark.promise("S5-250", "S6-156")
def test_a_task_that_was_let_go_is_named_by_its_sizes_when_its_worker_dies() -> None:
    bench = Bench()
    bench.submit(1, task=b"x" * 40)
    _, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.feed(events.WorkerDown(decode.worker, "gone"))
    (died,) = bench.of(actions.WorkerDied)
    assert [each.let_go_bytes for each in died.suspects] == [40]


@pytest.mark.promise("S6-187")
def test_what_waits_is_held_and_given_back_at_its_deadline() -> None:
    bench = Bench(memory=100)
    for phase in Phase:
        bench.worker(phase, 0, max_sequences=1)
    bench.submit(1)
    bench.submit(2, task=b"x" * 40, timeout_seconds=5.0)
    assert bench.core.budget.held == 41
    bench.feed(events.Tick(), after=6.0)
    assert bench.ends() == [(2, "deadline_exceeded")]
    assert bench.core.budget.held == 1


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
