"""The self-clocking batcher."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc.aio
import pytest
import uvloop
from echo_service import KINDS, Echo, Stub, open_channel, serving
from google.protobuf.wrappers_pb2 import BytesValue

from tandem.wire.outbox import Outbox

PATIENCE = 60.0
Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS: tuple[Run, ...] = (asyncio.run, uvloop.run)
"""A call holds back differently on each."""


class _Sender:
    """An owner with a draft of integers."""

    def __init__(self) -> None:
        self.draft: list[int] = []
        self.outbox: Outbox[list[int]] = Outbox(self._take)

    def _take(self) -> list[int] | None:
        taken, self.draft = self.draft, []
        return taken or None

    def add(self, *items: int) -> None:
        self.draft.extend(items)
        self.outbox.notify()


async def test_what_comes_during_a_write_leaves_as_one_message() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    sender.add(1)
    assert await anext(messages) == [1]
    sender.add(2)
    sender.add(3, 4)
    assert await anext(messages) == [2, 3, 4]


async def test_a_lone_item_leaves_at_once() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done()
    sender.add(1)
    assert await asyncio.wait_for(waiting, 1) == [1]


async def test_an_empty_draft_sends_nothing() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    sender.outbox.notify()
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done()
    sender.add(5)
    assert await asyncio.wait_for(waiting, 1) == [5]


async def test_closing_sends_what_is_there_and_ends_the_stream() -> None:
    sender = _Sender()
    sender.add(1, 2)
    sender.outbox.close()
    assert [message async for message in sender.outbox.messages()] == [[1, 2]]


async def test_closing_an_empty_outbox_ends_the_stream() -> None:
    sender = _Sender()
    sender.outbox.close()
    assert [message async for message in sender.outbox.messages()] == []


# --- written to a call ----------------------------------------------------------------------------


class _Call:
    """A writer that is full after some messages, until the test says otherwise."""

    def __init__(self, room: int = 1_000) -> None:
        self.written: list[list[int]] = []
        self.room = room
        self.reads = asyncio.Event()
        self.error: Exception | None = None
        self.before: Callable[[], object] = lambda: None

    def put(self, message: list[int]) -> bool:
        self.before()
        if self.error is not None:
            raise self.error
        self.written.append(message)
        self.room -= 1
        return self.room > 0

    async def flushed(self) -> None:
        await self.reads.wait()
        self.reads.clear()


async def _turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _writing(room: int = 1_000) -> tuple[_Sender, _Call, asyncio.Task[None]]:
    sender, call = _Sender(), _Call(room)
    writing = asyncio.create_task(sender.outbox.write_to(call))
    await _turns()
    return sender, call, writing


async def _written_full() -> tuple[_Sender, _Call, asyncio.Task[None]]:
    """A call that is full of its first message."""
    sender, call, writing = await _writing(room=1)
    sender.add(1)
    await _turns()
    return sender, call, writing


@pytest.mark.promise("S5-447")
async def test_what_a_turn_of_the_loop_brings_leaves_as_one_message_in_the_next() -> None:
    sender, call, writing = await _writing()
    sender.add(1)
    sender.add(2, 3)
    assert call.written == []
    await asyncio.sleep(0)
    assert call.written == [[1, 2, 3]]
    sender.add(4)
    sender.outbox.close()
    await asyncio.wait_for(writing, 1)
    assert call.written == [[1, 2, 3], [4]]


@pytest.mark.promise("S5-447")
async def test_what_was_there_before_is_written() -> None:
    sender, call = _Sender(), _Call()
    sender.add(1)
    writing = asyncio.create_task(sender.outbox.write_to(call))
    await _turns()
    assert call.written == [[1]]
    sender.outbox.stop()
    await asyncio.wait_for(writing, 1)


@pytest.mark.promise("S5-447")
async def test_nothing_is_taken_while_the_call_is_full() -> None:
    sender, call, writing = await _written_full()
    sender.add(2)
    await _turns()
    sender.add(3)
    await _turns()
    assert (call.written, sender.draft) == ([[1]], [2, 3])
    call.room = 10
    call.reads.set()
    await _turns()
    assert call.written == [[1], [2, 3]]
    writing.cancel()


@pytest.mark.promise("S5-447")
async def test_a_stop_sends_nothing_more_and_waits_for_what_is_being_written() -> None:
    sender, call, writing = await _written_full()
    sender.add(2)
    sender.outbox.stop()
    await _turns()
    assert not writing.done()
    call.reads.set()
    await asyncio.wait_for(writing, 1)
    assert call.written == [[1]]


@pytest.mark.promise("S5-447")
async def test_closing_a_full_call_sends_what_is_there_once_it_reads() -> None:
    sender, call, writing = await _written_full()
    sender.add(2)
    sender.outbox.close()
    call.room = 10
    call.reads.set()
    await asyncio.wait_for(writing, 1)
    assert call.written == [[1], [2]]


@pytest.mark.promise("S5-447")
async def test_closing_while_the_last_message_is_written_ends_the_stream_after_it() -> None:
    sender, call, writing = await _writing(room=1)
    sender.add(1)
    sender.outbox.close()
    await _turns()
    assert not writing.done()
    call.reads.set()
    await asyncio.wait_for(writing, 1)
    assert call.written == [[1]]


@pytest.mark.promise("S5-447")
async def test_what_cannot_be_taken_or_written_is_raised() -> None:
    sender, call, writing = await _writing()
    call.error = ValueError("no message")
    sender.add(1)
    with pytest.raises(ValueError, match="no message"):
        await asyncio.wait_for(writing, 1)


@pytest.mark.promise("S5-447")
@pytest.mark.parametrize("error", [None, ValueError("it is lost")])
async def test_a_message_may_cancel_what_writes_it(error: Exception | None) -> None:
    sender, call, unhandled = _Sender(), _Call(room=1), []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unhandled.append(said))
    writing = asyncio.create_task(sender.outbox.write_to(call))
    call.before = writing.cancel
    call.error = error
    await _turns()
    sender.add(1)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(writing), 1)
    assert unhandled == []


@pytest.mark.promise("S5-447")
async def test_an_outbox_whose_call_was_cancelled_takes_nothing_more() -> None:
    sender, call, writing = await _writing()
    sender.add(1)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    sender.add(2)
    await _turns()
    assert call.written in ([], [[1]])
    assert sender.draft[-1] == 2


@pytest.mark.promise("S6-191")
@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_call_that_is_over_is_gone_without_the_garbage_collector(cancelled: bool) -> None:
    """E2: 200 calls of 190 fields each were one collection of 30 ms, on the loop."""
    sender, call, writing = await _writing()
    kept = weakref.ref(call)
    del call
    assert kept() is not None
    gc.disable()
    try:
        writing.cancel() if cancelled else sender.outbox.stop()
        await asyncio.wait({writing})
        del writing  # an error holds the frames that it came through
        await _turns()
        assert kept() is None
    finally:
        gc.enable()


# --- written to a client --------------------------------------------------------------------------


class Feeding(Echo):
    """Its stream says numbers, as many at once as come while it cannot write."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.draft: list[int] = []
        self.taken = 0
        self.outbox: Outbox[bytes] = Outbox(self._take)
        self._size = size

    async def talk(self, requests: AsyncIterator[BytesValue], context: Any) -> None:
        try:
            await self.outbox.write_to(context)
        finally:
            self.ended.set()

    def say(self, number: int) -> None:
        self.draft.append(number)
        self.outbox.notify()

    def _take(self) -> bytes:
        self.taken += 1
        said, self.draft = self.draft, []
        return b" ".join(b"%d" % each for each in said) + b" " * self._size


@pytest.mark.promise("S5-447")
@pytest.mark.parametrize("run", LOOPS)
@pytest.mark.parametrize("client", KINDS)
def test_an_outbox_takes_no_more_than_a_client_reads(run: Run, client: str) -> None:
    run(_flooded(client))


async def _flooded(client: str) -> None:
    feeding, heard = Feeding(1_000_000), []
    async with serving("ours", feeding) as port, open_channel(client, port) as channel:
        call = Stub(channel).talk()
        for number in range(200):
            feeding.say(number)
            await asyncio.sleep(0.001)
        assert feeding.taken < 100, "a client that does not read is written to"
        feeding.outbox.close()
        async with asyncio.timeout(3 * PATIENCE):
            while (message := await call.read()) is not grpc.aio.EOF:
                heard += [int(each) for each in message.split()]
    assert heard == [*range(200)]


@pytest.mark.promise("S5-447")
@pytest.mark.parametrize("run", LOOPS)
def test_a_client_that_goes_ends_what_writes_to_it(run: Run) -> None:
    run(_left())


async def _left() -> None:
    feeding = Feeding(1_000_000)
    async with serving("ours", feeding) as port, open_channel("ours", port) as channel:
        call = Stub(channel).talk()
        feeding.say(0)
        await call.read()
        for number in range(100):
            feeding.say(number)
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait_for(feeding.ended.wait(), PATIENCE)
        taken = feeding.taken
        feeding.say(1)
        await asyncio.sleep(0.05)
        assert feeding.taken == taken
