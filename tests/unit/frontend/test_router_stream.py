"""What leaves by one stream to a router, and what is open by it."""

from __future__ import annotations

import pytest

from frontend.upstream.router_stream import RouterStream
from tandem.errors import QueueFullError
from tandem.v1 import router_pb2


def submit(first: int, size: int = 0) -> router_pb2.Submit:
    return router_pb2.Submit(first_sequence=first, task=b"x" * size)


async def test_a_request_released_before_it_left_is_not_sent_at_all() -> None:
    stream = RouterStream()
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
    stream = RouterStream()
    stream.submit([submit(1)])
    messages = stream.outbox.messages()
    await anext(messages)
    stream.release([1, 2], cancel=True)
    assert list((await anext(messages)).cancel) == [1]
    await messages.aclose()


async def test_large_prompts_leave_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.upstream.router_stream._MESSAGE_BYTES", 100)
    stream = RouterStream()
    stream.submit([submit(number, 60) for number in (1, 2, 3)])
    messages = stream.outbox.messages()
    sizes = [len((await anext(messages)).submit) for _ in range(2)]
    assert sizes == [2, 1]
    await messages.aclose()


async def test_a_router_that_takes_nothing_is_given_no_more_than_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frontend.upstream.router_stream._DRAFT_BYTES", 100)
    stream = RouterStream()
    stream.submit([submit(1, 101)])
    with pytest.raises(QueueFullError):
        stream.submit([submit(2)])
    stream.release([1], cancel=True)
    stream.submit([submit(3)])
    messages = stream.outbox.messages()
    assert [each.first_sequence for each in (await anext(messages)).submit] == [3]
    await messages.aclose()


async def test_it_is_told_once_that_nothing_is_open_any_longer() -> None:
    stream = RouterStream()
    stream.submit([submit(1), submit(2)])
    told: list[bool] = []
    stream.when_empty(lambda: told.append(True))
    stream.release([1], cancel=False)
    assert not told
    stream.release([2], cancel=False)
    stream.release([2], cancel=False)
    assert told == [True]
