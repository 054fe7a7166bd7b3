"""What leaves by one stream to a router, and what is open by it."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.byte_budget import ByteBudget
from tandem.errors import QueueFullError
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import prompt_chunks
from tandem.wire.prompt_chunks import SentChunks, names_of


def submit(first: int, size: int = 0) -> router_pb2.Submit:
    return router_pb2.Submit(first_sequence=first, task=b"x" * size)


async def test_a_request_released_before_it_left_is_not_sent_at_all() -> None:
    stream = RouterStream(ByteBudget())
    stream.submit([submit(1), submit(2)])
    assert stream.unsent(1)
    stream.release([1], cancel=True)
    messages = stream.outbox.messages()
    sent = await anext(messages)
    assert [each.first_sequence for each in sent.submit] == [2]
    assert list(sent.cancel) == []
    assert not stream.unsent(2)
    stream.release([2], cancel=True)
    assert list((await anext(messages)).cancel) == [2]
    assert stream.open == set()
    await messages.aclose()


async def test_what_another_stream_carries_is_not_cancelled_here() -> None:
    stream = RouterStream(ByteBudget())
    stream.submit([submit(1)])
    messages = stream.outbox.messages()
    await anext(messages)
    stream.release([1, 2], cancel=True)
    assert list((await anext(messages)).cancel) == [1]
    await messages.aclose()


async def test_what_waits_to_leave_has_so_much_less_time_at_its_router() -> None:
    now = 5.0
    stream = RouterStream(ByteBudget(), lambda: now)
    stream.submit([router_pb2.Submit(first_sequence=1, timeout_ms=10_000)])
    now = 7.5
    stream.submit([router_pb2.Submit(first_sequence=2, timeout_ms=10_000)])
    now = 8.0
    stream.submit([router_pb2.Submit(first_sequence=3, timeout_ms=1)])
    now = 9.0
    messages = stream.outbox.messages()
    sent = await anext(messages)
    # None at all would be no deadline: what is overdue has a moment, and its router ends it.
    assert [each.timeout_ms for each in sent.submit] == [6_000, 8_500, 1]
    await messages.aclose()


@pytest.mark.promise("S5-710")
async def test_a_prompt_with_names_leaves_as_without_and_they_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [
        SubmittedPrompt.of(range(n), max_tokens=1, cache_salt="s") for n in (3000, 5000, 5000)
    ]
    common = common_pb2.Task(cache_salt="s").SerializeToString()
    sent: list[router_pb2.Submit] = []
    for named in (False, True):
        stream = RouterStream(ByteBudget())
        stream.chunks = SentChunks(100)
        messages = stream.outbox.messages()
        if named:
            monkeypatch.setattr(prompt_chunks, "names_of", _of_one_chunk)
        for number, prompt in enumerate(prompts):
            whole = router_pb2.Submit(first_sequence=number, task=common + prompt.task)
            stream.submit([whole], [prompt.chunks] if named else [b""])
            sent += (await anext(messages)).submit
        await messages.aclose()
    assert sent[:3] == sent[3:]
    known = [each.known_prompt for each in sent[:3]]
    assert known == [b"", *(prompts[place].chunks[-16:] for place in (0, 1))]


def _of_one_chunk(token_ids: memoryview, *key: bytes, made: Any = names_of) -> Any:
    """What is looked at of a prompt whose names are known."""
    assert len(token_ids) <= prompt_chunks.chunk_bytes()
    return made(token_ids, *key)


@pytest.mark.promise("S5-710")
async def test_names_of_another_salt_are_not_told() -> None:
    stream, named = RouterStream(ByteBudget()), SubmittedPrompt.of(range(3000), max_tokens=1)
    stream.chunks = SentChunks(100)
    messages = stream.outbox.messages()
    salted = common_pb2.Task(cache_salt="s").SerializeToString() + named.task
    known = SubmittedPrompt.of(range(3000), max_tokens=1, cache_salt="s").chunks[-16:]
    for number in range(2):
        whole = router_pb2.Submit(first_sequence=number, task=salted)
        stream.submit([whole], [named.chunks])
        (sent,) = (await anext(messages)).submit
    assert sent.known_prompt == known != named.chunks[-16:]
    await messages.aclose()


async def test_large_prompts_leave_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.upstream.router_stream._MESSAGE_BYTES", 100)
    stream = RouterStream(ByteBudget())
    stream.submit([submit(number, 60) for number in (1, 2, 3)])
    messages = stream.outbox.messages()
    sizes = [len((await anext(messages)).submit) for _ in range(2)]
    assert sizes == [2, 1]
    await messages.aclose()


async def test_a_router_that_takes_nothing_is_given_no_more_than_there_is_memory_for() -> None:
    budget = ByteBudget(160)  # 120 for what is new
    stream = RouterStream(budget)
    stream.submit([submit(1, 100)])
    with pytest.raises(QueueFullError):
        stream.submit([submit(2, 10), submit(3, 11)])
    assert (stream.open, budget.held) == ({1}, 100)
    stream.release([1], cancel=True)
    assert budget.held == 0
    stream.submit([submit(4, 100)])
    messages = stream.outbox.messages()
    assert [each.first_sequence for each in (await anext(messages)).submit] == [4]
    assert budget.held == 0
    await messages.aclose()


@pytest.mark.parametrize("way", ["drain", "close"])
async def test_what_never_left_a_stream_is_given_back_with_it(way: str) -> None:
    budget = ByteBudget(1000)
    stream = RouterStream(budget)
    stream.submit([submit(1, 100), submit(2, 50)])
    getattr(stream, way)()
    assert (budget.held, stream.unsent(1)) == (0, False)


async def test_it_is_told_once_that_nothing_is_open_any_longer() -> None:
    stream = RouterStream(ByteBudget())
    stream.submit([submit(1), submit(2)])
    told: list[bool] = []
    stream.when_empty(lambda: told.append(True))
    stream.release([1], cancel=False)
    assert not told
    stream.release([2], cancel=False)
    stream.release([2], cancel=False)
    assert told == [True]
