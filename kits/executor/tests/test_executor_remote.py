"""Both executors in front of a router that answers by script."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import fake_router
import pytest
from both import MODEL, SECONDS, InThreads, Start, final, ready, request, three_tokens
from fake_router import Reply

from tandem.errors import QueueFullError
from tandem_executor import (
    AsyncExecutor,
    FinishReason,
    SamplingConfig,
    ShutDownError,
    asynchronous,
)


@pytest.mark.promise("S2-056", "S2-068")
async def test_a_request_is_answered(start: Start) -> None:
    router, executor = await start(three_tokens)
    request_id = executor.enqueue_request(request(client_id=9))
    (response,) = await final(executor, request_id)
    assert response.result.output_token_ids == [[1, 2, 11, 12, 13]]
    assert response.client_id == 9
    (reply,) = router.replies.values()
    assert (reply.submit.model, reply.submit.resume) == (MODEL, False)


async def nothing(reply: Reply) -> None:
    """Answers when it is cancelled, if at all."""


_WAITS = {"sleep", "wait", "wait_for", "result", "select", "poll", "recv", "run_until_complete"}


def waits_in(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """What a call returns, and what it called, in Python or C, that waits for somebody."""
    called: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_name)
        elif event == "c_call":
            called.add(argument.__name__)

    sys.setprofile(note)
    try:
        returned = call()
    finally:
        sys.setprofile(None)
    return returned, called & _WAITS


@pytest.mark.promise("S2-056")
@pytest.mark.parametrize("reached", [True, False], ids=["router", "no router"])
async def test_an_id_returns_without_waiting_for_anybody(start: Start, reached: bool) -> None:
    """Neither for a router, nor for the executor's own thread, which stands still meanwhile."""
    before = "" if reached else "127.0.0.1:1,"
    _, executor = await start(nothing, before=before)
    stands, go_on = threading.Event(), threading.Event()
    threads = isinstance(executor, InThreads)
    if threads:
        executor._loop.call_soon_threadsafe(lambda: (stands.set(), go_on.wait(SECONDS)))
        await asyncio.to_thread(stands.wait, SECONDS)
    try:
        first, waits = waits_in(lambda: executor.enqueue_request(request()))
        others, more = waits_in(lambda: executor.enqueue_requests([request()] * 3))
        assert not go_on.is_set()
    finally:
        go_on.set()
    assert waits | more == set()
    assert len({first, *others}) == 4


@pytest.mark.promise("S2-057", "S2-061")
async def test_several_requests_are_answered_each_with_its_own(start: Start) -> None:
    async def echo(reply: Reply) -> None:
        reply.token_ids([100 + reply.task.prompt_token_ids[0]])
        reply.finish(length=True)

    _, executor = await start(echo)
    given = [request(input_token_ids=[number]) for number in range(40)]
    request_ids = executor.enqueue_requests(given)
    assert request_ids == sorted(set(request_ids))
    backwards = request_ids[::-1]
    lists = await executor.await_responses(backwards, SECONDS)
    outputs = [responses[0].result.output_token_ids[0][1] - 100 for responses in lists]
    assert outputs == list(range(40))[::-1]


@pytest.mark.promise("S2-062")
async def test_a_timeout_without_responses_gives_none(start: Start) -> None:
    _, executor = await start(nothing)
    request_id = executor.enqueue_request(request())
    assert await executor.await_responses(request_id, 0) == []
    assert await executor.await_responses([request_id], timedelta(milliseconds=1)) == [[]]
    assert await executor.await_responses(timedelta(milliseconds=1)) == []


async def test_each_of_several_waits_ends_at_its_own_time(start: Start) -> None:
    _, executor = await start(nothing)
    executor.enqueue_request(request())
    ended = []

    async def wait(seconds: float) -> None:
        assert await executor.await_responses(timeout=seconds) == []
        ended.append(seconds)

    longest = asyncio.ensure_future(executor.await_responses(timeout=SECONDS))
    async with asyncio.timeout(SECONDS / 2):
        await asyncio.gather(*map(wait, (0.05, 0.3, 0.6)))
    assert ended == [0.05, 0.3, 0.6]
    assert not longest.done()
    await executor.shutdown()
    assert await longest == []


async def test_limits_that_lie_close_together_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look goes through all: one for each of thousands would be all that a program does."""
    monkeypatch.setattr(asynchronous, "_GRAIN_SECONDS", 0.05)
    looks = 0
    look = AsyncExecutor._on_time

    def counted(executor: AsyncExecutor) -> None:
        nonlocal looks
        looks += 1
        look(executor)

    monkeypatch.setattr(AsyncExecutor, "_on_time", counted)
    limits = [0.2 + 0.002 * number for number in range(50)]
    served = fake_router.fleet(model=MODEL, tokenizer_sha256="any")
    async with (
        fake_router.running(nothing, served) as router,
        AsyncExecutor(router.address) as executor,
        asyncio.timeout(SECONDS),
    ):
        waits = [executor.await_responses(timeout=each) for each in limits]
        assert await asyncio.gather(*waits) == [[]] * len(limits)
    assert 1 <= looks <= 4


async def test_a_wait_that_is_over_leaves_nothing_behind() -> None:
    served = fake_router.fleet(model=MODEL, tokenizer_sha256="any")
    async with (
        fake_router.running(three_tokens, served) as router,
        AsyncExecutor(router.address) as executor,
    ):
        await final(executor, executor.enqueue_request(request()))
        assert await executor.await_responses(timeout=0.01) == []
        assert not executor._limits


async def test_who_waits_no_longer_is_not_woken_in_place_of_another(start: Start) -> None:
    go_on = asyncio.Event()

    async def later(reply: Reply) -> None:
        await go_on.wait()
        await three_tokens(reply)

    router, executor = await start(later)
    executor.enqueue_request(request())
    await router.until(lambda router: len(router.replies) == 1)
    assert await executor.await_responses(timeout=0.01) == []
    waits = asyncio.ensure_future(executor.await_responses(timeout=SECONDS))
    await asyncio.sleep(0.05)
    go_on.set()
    assert await waits


@pytest.mark.promise("S2-063")
@pytest.mark.parametrize("which", [1, 77, 0, -1])
async def test_an_id_that_is_over_or_never_was_is_an_error_and_no_hang(
    start: Start, which: int
) -> None:
    _, executor = await start(three_tokens)
    await final(executor, executor.enqueue_request(request()))
    (response,) = await executor.await_responses(which)
    assert response.has_error()
    assert f"ReqId {which} " in response.error_msg
    assert executor.get_num_responses_ready(which) == 0


@pytest.mark.promise("S2-064", "S2-065")
async def test_a_cancelled_request_ends_here_and_at_the_router(start: Start) -> None:
    async def begin(reply: Reply) -> None:
        reply.token_ids([11])

    router, executor = await start(begin)
    request_id = executor.enqueue_request(request(streaming=True))
    (first,) = await executor.await_responses(request_id, SECONDS)
    assert not first.result.is_final
    executor.cancel_request(request_id)
    (last,) = await final(executor, request_id)
    assert last.result.finish_reasons == [FinishReason.CANCELLED]
    await router.until(lambda router: router.cancels == [*router.replies])
    for gone in (request_id, 1000):
        executor.cancel_request(gone)
    assert await executor.await_responses(timeout=0) == []


async def test_a_place_that_a_cancel_freed_is_taken_at_once(start: Start) -> None:
    router, executor = await start(nothing, max_open_sequences=1)
    first = executor.enqueue_request(request())
    await router.until(lambda router: len(router.replies) == 1)
    executor.cancel_request(first)
    second = executor.enqueue_request(request())
    await router.until(lambda router: len(router.replies) == 2)
    assert executor.get_num_responses_ready(second) == 0


@pytest.mark.promise("S2-078", "S2-079")
async def test_a_request_whose_time_is_over_ends_as_timed_out(start: Start) -> None:
    async def begin(reply: Reply) -> None:
        reply.token_ids([11])

    router, executor = await start(begin)
    request_id = executor.enqueue_request(request(allotted_time_ms=1000))
    (response,) = await final(executor, request_id)
    assert response.result.finish_reasons == [FinishReason.TIMED_OUT]
    assert response.result.output_token_ids == [[1, 2, 11]]
    (reply,) = router.replies.values()
    assert reply.submit.timeout_ms <= 1000
    await router.until(lambda router: router.cancels == [reply.first])


@pytest.mark.promise("S2-079")
async def test_a_request_that_waits_here_times_out_too(start: Start) -> None:
    router, executor = await start(nothing, max_open_sequences=1)
    executor.enqueue_request(request())
    waiting = executor.enqueue_request(request(allotted_time_ms=timedelta(milliseconds=50)))
    (response,) = await final(executor, waiting)
    assert response.result.finish_reasons == [FinishReason.TIMED_OUT]
    assert len(router.replies) <= 1, "it never left"


@pytest.mark.promise("S2-083")
async def test_of_requests_that_wait_the_one_of_higher_priority_starts_first(start: Start) -> None:
    go = asyncio.Event()

    async def wait(reply: Reply) -> None:
        await go.wait()
        reply.token_ids([11])
        reply.finish()

    router, executor = await start(wait, max_open_sequences=1)
    executor.enqueue_request(request(priority=0.5))
    await router.until(lambda router: len(router.replies) == 1)
    for priority in (0.0, 0.9, 0.6):
        executor.enqueue_request(request(priority=priority))
    go.set()
    await router.until(lambda router: len(router.replies) == 4)
    assert [reply.submit.priority for reply in router.replies.values()] == [0, 800, 200, -1000]


@pytest.mark.parametrize(
    ("stop_tokens", "fields", "reason"),
    [
        ([5], {"end_id": 5}, FinishReason.END_ID),
        ([], {"end_id": 5}, FinishReason.END_ID),
        ([6], {"end_id": 5, "stop_words": [[6]]}, FinishReason.STOP_WORDS),
        ([5], {"end_id": 5, "stop_words": [[5]]}, FinishReason.END_ID),
        ([6, 5], {"end_id": 5, "stop_words": [[6, 5]]}, FinishReason.END_ID),
        ([6], {"stop_words": [[6]]}, FinishReason.STOP_WORDS),
        ([4, 6], {"stop_words": [[7], [4, 6]]}, FinishReason.STOP_WORDS),
    ],
)
@pytest.mark.promise("S2-078")
async def test_a_finish_reason_says_what_ended_it(
    start: Start, stop_tokens: list[int], fields: dict[str, Any], reason: FinishReason
) -> None:
    async def end(reply: Reply) -> None:
        reply.token_ids([4, 6])
        reply.finish(stop_tokens=stop_tokens)

    router, executor = await start(end)
    (response,) = await final(executor, executor.enqueue_request(request(**fields)))
    assert response.result.finish_reasons == [reason]
    (reply,) = router.replies.values()
    sampling = reply.task.sampling
    assert sampling.ignore_eos is ("end_id" not in fields)
    assert list(sampling.stop_token_ids) == [fields[name] for name in ("end_id",) if name in fields]
    words = [list(word.token_id) for word in sampling.stop_words]
    assert words == fields.get("stop_words", [])


async def test_a_verdict_of_the_operator_shows_in_the_result(start: Start) -> None:
    async def withhold(reply: Reply) -> None:
        reply.token_ids([4])
        await reply.flush()
        reply.end(stop_reason="banned_phrase")

    _, executor = await start(withhold)
    (response,) = await final(executor, executor.enqueue_request(request(end_id=5)))
    result = response.result
    assert (result.withheld, result.stop_reason) == (True, "banned_phrase")
    assert result.finish_reasons == [FinishReason.STOP_WORDS]


async def test_what_a_router_refuses_is_an_error_response(start: Start) -> None:
    async def refuse(reply: Reply) -> None:
        reply.end(error=QueueFullError("too many wait").to_proto())

    _, executor = await start(refuse)
    (response,) = await final(executor, executor.enqueue_request(request()))
    assert (response.error_msg, response.error_code) == ("too many wait", "queue_full")


async def test_a_router_that_goes_away_fails_what_it_had_and_is_dialled_again(
    start: Start,
) -> None:
    hold = True

    async def script(reply: Reply) -> None:
        reply.token_ids([11])
        await reply.flush()
        if not hold:
            reply.finish()

    router, executor = await start(script)
    request_ids = executor.enqueue_requests([request(streaming=True)] * 3)
    for responses in await executor.await_responses(request_ids, SECONDS):
        assert not responses[0].has_error()
    router.drop()
    for responses in await executor.await_responses(request_ids, SECONDS):
        assert [response.error_code for response in responses] == ["router_lost"]
    hold = False
    (response,) = await final(executor, executor.enqueue_request(request()))
    assert response.result.is_final


async def test_without_a_router_a_request_ends_typed_once_it_has_waited(start: Start) -> None:
    router, executor = await start(nothing, router_wait_seconds=0.2)
    await router.stop_serving()
    (response,) = await final(executor, executor.enqueue_request(request()))
    assert response.error_code == "router_lost"


@pytest.mark.promise("S5-206")
async def test_a_router_is_told_of_which_model_whose_and_how_requests_are(start: Start) -> None:
    """Of one model's tokenizers, the one that most pairs have."""
    served = fake_router.fleet(model=MODEL, tokenizer_sha256="any")
    served.MergeFrom(fake_router.fleet(model="other", tokenizer_sha256="old"))
    served.MergeFrom(fake_router.fleet(model="other", tokenizer_sha256="new", ready_pairs=2))
    settings = {"model": "other", "tenant": "batch", "weight": 3, "resume": True}
    router, executor = await start(three_tokens, fleet=served, **settings)
    await final(executor, executor.enqueue_request(request(cache_salt_id=5)))
    (reply,) = router.replies.values()
    assert (reply.submit.model, reply.submit.tokenizer_sha256) == ("other", "new")
    assert (reply.submit.tenant, reply.submit.weight, reply.submit.resume) == ("batch", 3, True)
    assert (reply.task.tenant, reply.task.cache_salt) == ("batch", "5")


@pytest.mark.promise("S2-059", "S2-060", "S2-084")
async def test_ready_counts_are_those_of_the_responses_and_many_may_stay_unread(
    start: Start,
) -> None:
    async def twenty(reply: Reply) -> None:
        for token_id in range(20):
            for output in range(2):
                reply.token_ids([token_id], output=output)
        for output in range(2):
            reply.finish(output=output, length=True)

    _, executor = await start(twenty)
    twice = SamplingConfig(num_return_sequences=2)
    each = request(max_tokens=20, streaming=True, sampling_config=twice)
    request_ids = executor.enqueue_requests([each] * 50)
    await ready(executor, 50 * 20 * 2)
    assert [executor.get_num_responses_ready(each) for each in request_ids] == [40] * 50
    assert len(await executor.await_responses(request_ids[0])) == 40
    responses = await executor.await_responses()
    assert len(responses) == 49 * 40
    assert sum(response.result.is_final for response in responses) == 49
    assert executor.get_num_responses_ready() == 0


async def test_a_request_waits_until_others_are_read_and_nothing_else_does(start: Start) -> None:
    router, executor = await start(three_tokens, max_unread_tokens=4)
    first, second = executor.enqueue_requests([request(), request()])
    await ready(executor, 1, first)
    assert len(router.replies) == 1
    assert await executor.await_responses(second, 0.05) == []
    await final(executor, first)
    await final(executor, second)


@pytest.mark.promise("S2-081")
async def test_shutdown_wakes_whoever_waits_and_later_calls_raise(start: Start) -> None:
    router, executor = await start(nothing)
    request_id = executor.enqueue_request(request())
    await router.until(lambda router: len(router.replies) == 1)
    waits = [asyncio.ensure_future(executor.await_responses(which)) for which in (None, request_id)]
    await asyncio.sleep(0.05)
    await executor.shutdown()
    async with asyncio.timeout(SECONDS):
        assert await asyncio.gather(*waits) == [[], []]
    await router.until(lambda router: not router.streams)
    assert not executor.can_enqueue_requests()
    with pytest.raises(ShutDownError):
        await executor.await_responses(timeout=0)
    for call in (
        lambda: executor.enqueue_request(request()),
        lambda: executor.cancel_request(request_id),
        executor.get_num_responses_ready,
        executor.get_latest_iteration_stats,
        executor.get_latest_request_stats,
    ):
        with pytest.raises(ShutDownError):
            call()
    await executor.shutdown()


async def test_a_request_that_a_program_changes_later_runs_as_it_was(start: Start) -> None:
    router, executor = await start(three_tokens, max_open_sequences=1)
    changed = request()
    executor.enqueue_request(changed)
    second = executor.enqueue_request(changed)
    changed.input_token_ids[0] = 1999  # type: ignore[index]
    changed.sampling_config.top_k = 5
    await final(executor, second)
    for reply in router.replies.values():
        assert list(reply.task.prompt_token_ids) == [1, 2]
        assert reply.task.sampling.temperature == 0


async def test_a_backend_that_fails_says_so_and_lets_nobody_wait(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(link: object, receiver: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr("tandem_executor.remote.Routers.run", break_down)
    _, executor = await start(nothing)
    with suppress(ShutDownError):  # it may have failed already
        request_id = executor.enqueue_request(request())
        (response,) = await final(executor, request_id)
        assert response.error_code == "internal_error"
    with pytest.raises(ShutDownError, match="failed"):
        executor.enqueue_request(request())
    with pytest.raises(ShutDownError, match="failed"):
        await executor.await_responses()
    assert "the executor has failed" in caplog.text


async def test_an_executor_whose_backend_cannot_start_takes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr("tandem_executor.remote.Demultiplexer", refuse)
    _, executor = await start(nothing)
    with pytest.raises(ShutDownError, match="failed"):
        executor.enqueue_request(request())
    assert "the executor has failed" in caplog.text


@pytest.mark.promise("S5-281")
async def test_an_executor_of_several_routers_uses_those_that_are_there(start: Start) -> None:
    router, executor = await start(three_tokens, before="127.0.0.1:1,")
    (response,) = await final(executor, executor.enqueue_request(request()))
    assert response.result.output_token_ids == [[1, 2, 11, 12, 13]]
    assert len(router.replies) == 1
