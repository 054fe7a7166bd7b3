"""A worker's socket of SGLang's tokenizer manager: whatever was sent is received, in order, also
where nobody waited for it, and nothing keeps the loop busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq
import zmq.asyncio

from tandem.engine.sglang.inbox import Inbox

WAIT_SECONDS = 10.0


class Rig:
    """Both ends of a socket."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._theirs = zmq.Context()
        socket = self._context.socket(zmq.PULL)
        socket.bind(address)
        self.sender = self._theirs.socket(zmq.PUSH)
        self.sender.connect(address)
        self.inbox = Inbox(socket)

    def send(self, *messages: bytes) -> None:
        for each in messages:
            self.sender.send(each)

    async def received(self, count: int) -> list[bytes]:
        async with asyncio.timeout(WAIT_SECONDS):
            return [await self.inbox.recv() for _ in range(count)]

    def close(self) -> None:
        self.inbox.ignore()
        self.inbox.close(linger=0)
        self.sender.close(linger=0)
        self._theirs.term()
        self._context.term()


@pytest.fixture
async def rig(tmp_path: Any) -> AsyncIterator[Rig]:
    made = Rig(f"ipc://{tmp_path}/inbox")
    yield made
    made.close()


async def settled() -> None:
    """What was sent is there."""
    await asyncio.sleep(0.1)


async def test_all_that_is_sent_is_received_in_order_however_it_falls(rig: Rig) -> None:
    sent = [b"%d" % number for number in range(500)]

    async def send() -> None:
        for place, each in enumerate(sent):
            rig.send(each)
            if place % 7 == 0:  # some come in heaps, some while somebody waits
                await asyncio.sleep(0.001)

    sending = asyncio.create_task(send())
    assert await rig.received(len(sent)) == sent
    await sending


async def test_what_came_while_nobody_waited_is_received(rig: Rig) -> None:
    rig.send(b"first")
    assert await rig.received(1) == [b"first"]
    rig.send(b"second", b"third")
    await settled()
    assert await rig.received(2) == [b"second", b"third"]


async def test_messages_that_nobody_receives_do_not_keep_the_loop_busy(rig: Rig) -> None:
    rig.send(b"first")
    assert await rig.received(1) == [b"first"]
    waiting = asyncio.create_task(rig.inbox.recv())
    await settled()
    waiting.cancel()
    told = 0
    readable = rig.inbox._readable

    def counted() -> None:
        nonlocal told
        told += 1
        readable()

    asyncio.get_running_loop().add_reader(rig.inbox._fd, counted)
    rig.send(b"second")
    await settled()
    assert told == 1
    assert await rig.received(1) == [b"second"]
    rig.send(b"third")
    assert await rig.received(1) == [b"third"]


async def test_pickles_are_what_they_were_made_of(rig: Rig) -> None:
    rig.sender.send_pyobj({"rid": ["a", "b"]})
    async with asyncio.timeout(WAIT_SECONDS):
        assert await rig.inbox.recv_pyobj() == {"rid": ["a", "b"]}


async def test_what_is_closed_leaves_nothing_in_the_loop(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.inbox.recv())
    await settled()
    rig.inbox.ignore()
    assert not asyncio.get_running_loop().remove_reader(rig.inbox._fd)
    waiting.cancel()
