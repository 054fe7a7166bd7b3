"""A request's life over a stand-in for SGLang's tokenizer manager: it ends once, and in time."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tandem.engine.base import Delta, Ending, EngineRequest, Role
from tandem.errors import EngineError, KvTransferError
from tandem.logits.ready.grammar import Regex
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.v1 import common_pb2
from tandem_sglang import chunks, request_stream
from tandem_sglang.chunks import HAND_OVER_KEY
from tandem_sglang.outputs import HandOver
from tandem_sglang.request_stream import RequestStream

RID = "tandem-7"
WAIT = 60.0


@dataclass
class State:
    """What SGLang keeps of a request."""

    dispatched: bool = True
    abort_sent: bool = False


@dataclass
class Manager:
    """Streams what a test puts into `chunks`; None ends the stream, an exception is raised."""

    answers_aborts: bool = True
    dispatched: bool = True
    chunks: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    rid_to_state: dict[str, State] = field(default_factory=dict)
    aborts: int = 0
    closed: int = 0
    reading: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate_request(self, request: Any, _connection: None) -> AsyncIterator[Any]:
        self.rid_to_state[request.rid] = State(self.dispatched)
        self.reading.set()
        try:
            while (chunk := await self.chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.closed += 1
            self.rid_to_state.pop(request.rid, None)

    def abort_request(self, rid: str) -> None:
        assert not self.rid_to_state[rid].abort_sent, "SGLang would swallow this abort"
        self.rid_to_state[rid].abort_sent = True
        self.aborts += 1
        if self.answers_aborts:
            self.chunks.put_nowait(chunk([], type="abort", message="Aborted"))


@dataclass
class SglangRequest:
    rid: str = RID


@dataclass
class Run:
    """A stream, its task and what it emitted."""

    manager: Manager
    stream: RequestStream
    deltas: list[Delta]

    async def end(self) -> Delta:
        """The last delta; there is exactly one with an end."""
        async with asyncio.timeout(WAIT):
            await self.stream.run()
        assert [delta.end is not None for delta in self.deltas].count(True) == 1
        return self.deltas[-1]

    async def end_after(self, action: Any) -> Delta:
        """As `end`; `action` is called once the stream is being read."""
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as group:
            group.create_task(self.stream.run())
            await self.manager.reading.wait()
            action()
        assert [delta.end is not None for delta in self.deltas].count(True) == 1
        return self.deltas[-1]


def chunk(token_ids: list[int], /, **reason: Any) -> dict[str, Any]:
    return {"output_ids": token_ids, "meta_info": {"finish_reason": reason or None}}


def start(
    manager: Manager,
    *,
    role: Role = Role.DECODE,
    seconds: float = WAIT,
    logits: LogitsProcessorSpec | None = None,
    **sampling: int,
) -> Run:
    deltas: list[Delta] = []
    request = EngineRequest(
        request_id=7,
        token_ids=[1, 2],
        sampling=common_pb2.SamplingParams(max_tokens=9, **sampling),
        room=1,
        timeout_seconds=seconds,
        logits=logits,
    )
    stream = RequestStream(
        request, role=role, manager=manager, sglang_request=SglangRequest(), emit=deltas.append
    )
    return Run(manager, stream, deltas)


async def test_tokens_arrive_as_they_are_streamed_and_the_last_delta_has_the_end() -> None:
    run = start(Manager())
    for each in (chunk([4]), chunk([5, 6]), chunk([1], type="stop", matched=1)):
        run.manager.chunks.put_nowait(each)
    last = await run.end()
    assert [list(delta.token_ids) for delta in run.deltas] == [[4], [5, 6], [1]]
    assert last.end is Ending.STOP
    assert run.manager.closed == 1


def row(run: Run, *token_ids: int, hand_over: HandOver = ()) -> None:
    delta = run.stream.take(token_ids, 3, 2, hand_over)
    if delta is not None:
        run.deltas.append(delta)


async def test_rows_of_a_request_that_goes_on_come_before_what_ends_it() -> None:
    run = start(Manager())

    def then() -> None:
        row(run, 4, hand_over=[(4096, 0.5, "nixl/ucx/shm")])
        assert run.stream.generated == 1
        row(run, 5, 6)
        run.manager.chunks.put_nowait(chunk([1], type="length"))

    last = await run.end_after(then)
    assert [list(delta.token_ids) for delta in run.deltas] == [[4], [5, 6], [1]]
    assert last.end is Ending.LENGTH
    first, second, _ = run.deltas
    assert first.kv is not None
    assert (first.kv.bytes, first.cached_tokens) == (4096, 3)
    assert second.kv is None
    assert run.stream.retractions == 2
    assert run.stream.generated == 4


async def test_a_request_that_is_being_cancelled_takes_no_row() -> None:
    run = start(Manager())

    def then() -> None:
        row(run, 4)
        run.stream.cancel()
        row(run, 5)

    last = await run.end_after(then)
    assert [list(delta.token_ids) for delta in run.deltas] == [[4], []]
    assert last.end is Ending.CANCELLED


async def test_a_form_counts_as_in_use_until_its_request_ends() -> None:
    """The scheduler has it in memory for as long, wherever it is kept."""
    form = Regex("a+")
    entry = LogitsProcessorEntry("regex", {}, from_client=True, key="key", ready=form)
    run = start(Manager(), logits=LogitsProcessorSpec((entry,)))
    used = weakref.ref(form)
    del form, entry
    gc.collect()
    assert used() is not None
    run.manager.chunks.put_nowait(chunk([1], type="stop", matched=1))
    await run.end()
    del run
    gc.collect()
    assert used() is None


SCORED = {
    "input_token_logprobs": [(None, 1, None), (-0.5, 2, None)],
    "output_token_logprobs": [(-0.25, 4, None)],
}


def scored(token_ids: list[int], /, **reason: Any) -> dict[str, Any]:
    """A chunk as SGLang makes it where log-probabilities of the prompt are wanted."""
    made = chunk(token_ids, **reason)
    made["meta_info"] |= SCORED
    return made


@pytest.mark.promise("S6-331")
async def test_the_prompts_log_probabilities_ride_on_the_first_delta_with_a_token() -> None:
    run = start(Manager(), role=Role.AGGREGATED, prompt_logprobs=0)
    for each in (chunk([]), scored([4]), scored([5]), scored([6], type="length", length=3)):
        run.manager.chunks.put_nowait(each)
    await run.end()
    _, first, *others = run.deltas
    assert first.prompt_logprobs is not None
    assert list(first.prompt_logprobs.token_ids) == [1, 2]
    assert first.prompt_logprobs.logprobs.chosen == [-0.5]
    assert all(each.prompt_logprobs is None for each in others)
    assert all(each.logprobs is None for each in run.deltas), "nobody asked for the output's"


@pytest.mark.promise("S6-331")
@pytest.mark.parametrize(
    ("role", "asked"), [(Role.DECODE, {"prompt_logprobs": 0}), (Role.PREFILL, {})]
)
async def test_decode_and_whoever_was_not_asked_say_none_of_the_prompts(
    role: Role, asked: dict[str, int]
) -> None:
    run = start(Manager(), role=role, **asked)
    run.manager.chunks.put_nowait(scored([4], type="length", length=1))
    assert (await run.end()).prompt_logprobs is None


@pytest.mark.promise("S6-186")
async def test_what_a_long_prompt_brings_is_read_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a cancel that comes meanwhile ends the request."""
    run = start(Manager(), role=Role.PREFILL, prompt_logprobs=0)
    threads = []

    def read(*_given: Any) -> Any:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(run.stream.cancel)
        while not run.manager.aborts:
            time.sleep(0.001)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(chunks, "prompt_logprobs_of", read)
    run.manager.chunks.put_nowait(scored([4], type="length", length=1))
    assert (await run.end()).end is Ending.CANCELLED
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.promise("S6-333")
async def test_a_prompt_that_was_not_scored_ends_its_request() -> None:
    run = start(Manager(), role=Role.PREFILL, prompt_logprobs=0)
    run.manager.chunks.put_nowait(chunk([4], type="length", length=1))
    last = await run.end()
    assert (last.end, type(last.error), last.retryable) == (Ending.FAILED, EngineError, True)
    assert len(run.deltas) == 1


async def test_the_measured_hand_over_rides_on_the_first_delta() -> None:
    run = start(Manager())
    first = chunk([4])
    first["meta_info"][HAND_OVER_KEY] = [(2048, 0.25, "nixl/ucx/shm")]
    run.manager.chunks.put_nowait(first)
    run.manager.chunks.put_nowait(chunk([5], type="length", length=2))
    await run.end()
    measured = run.deltas[0].kv
    assert measured is not None
    assert (measured.bytes, measured.seconds) == (2048, 0.25)
    assert run.deltas[1].kv is None


@pytest.mark.promise("S5-299")
async def test_its_retractions_are_what_its_last_output_told() -> None:
    """An abort says nothing of them."""
    run = start(Manager())
    first, second = chunk([4]), chunk([5])
    first["meta_info"]["num_retractions"], second["meta_info"]["num_retractions"] = 1, 3
    for each in (first, second, chunk([], type="abort", message="Aborted")):
        run.manager.chunks.put_nowait(each)
    await run.end()
    assert run.stream.retractions == 3


async def test_cancel_ends_a_running_request_once_sglang_has_let_go() -> None:
    run = start(Manager())
    run.manager.chunks.put_nowait(chunk([4]))
    last = await run.end_after(run.stream.cancel)
    assert last.end is Ending.CANCELLED
    assert run.manager.aborts == 1


async def test_cancel_before_the_task_ran_never_reaches_sglang() -> None:
    run = start(Manager())
    run.stream.cancel()
    last = await run.end()
    assert last.end is Ending.CANCELLED
    assert not run.manager.reading.is_set()


async def test_cancel_before_the_scheduler_has_the_request_ends_at_once() -> None:
    run = start(Manager(dispatched=False))
    last = await run.end_after(run.stream.cancel)
    assert last.end is Ending.CANCELLED
    assert (run.manager.aborts, run.manager.closed) == (0, 1)


async def test_an_abort_that_missed_the_request_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_stream, "ABORT_AGAIN_SECONDS", 0.01)
    manager = Manager(answers_aborts=False)
    run = start(manager)

    def cancel_then_answer_the_third() -> None:
        run.stream.cancel()
        original = manager.abort_request

        def abort_request(rid: str) -> None:
            manager.answers_aborts = manager.aborts == 2
            original(rid)

        manager.abort_request = abort_request  # type: ignore[method-assign]

    last = await run.end_after(cancel_then_answer_the_third)
    assert (last.end, manager.aborts) == (Ending.CANCELLED, 3)


async def test_an_engine_that_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_stream, "ABORT_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(request_stream, "ABANDON_SECONDS", 0.05)
    run = start(Manager(answers_aborts=False))
    last = await run.end_after(run.stream.cancel)
    assert last.end is Ending.CANCELLED
    assert run.manager.closed == 1


async def test_tokens_that_come_after_a_cancel_are_nobodys() -> None:
    run = start(Manager(answers_aborts=False))

    def cancel_then_go_on() -> None:
        run.stream.cancel()
        run.manager.chunks.put_nowait(chunk([4]))
        run.manager.chunks.put_nowait(chunk([5], type="length", length=2))

    last = await run.end_after(cancel_then_go_on)
    assert (last.end, list(last.token_ids)) == (Ending.CANCELLED, [])
    assert len(run.deltas) == 1


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_a_hand_over_that_never_comes_fails_in_time_and_may_be_retried(role: Role) -> None:
    run = start(Manager(), role=role, seconds=0.05)
    last = await run.end()
    assert last.end is Ending.FAILED
    assert isinstance(last.error, KvTransferError)
    assert last.retryable


async def test_nothing_is_retried_after_a_token_was_shown() -> None:
    run = start(Manager())
    run.manager.chunks.put_nowait(chunk([4]))
    run.manager.chunks.put_nowait(chunk([5], type="abort", message="Aborted", status_code=503))
    last = await run.end()
    assert (last.end, last.retryable, list(last.token_ids)) == (Ending.FAILED, False, [])


async def test_what_sglang_raises_ends_that_request_alone() -> None:
    run = start(Manager())
    run.manager.chunks.put_nowait(ValueError("no such thing"))
    last = await run.end()
    assert last.end is Ending.FAILED
    assert isinstance(last.error, EngineError)
    assert "no such thing" in str(last.error)


async def test_a_stream_that_stops_without_a_reason_is_a_failure() -> None:
    run = start(Manager())
    run.manager.chunks.put_nowait(None)
    last = await run.end()
    assert last.end is Ending.FAILED
    assert isinstance(last.error, EngineError)


async def test_a_closing_engine_ends_the_task_and_emits_nothing() -> None:
    run = start(Manager())
    task = asyncio.get_running_loop().create_task(run.stream.run())
    await asyncio.wait_for(run.manager.reading.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT)
    assert run.deltas == []
    assert run.manager.closed == 1
