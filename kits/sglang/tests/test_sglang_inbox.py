"""What SGLang's processes send a worker, by ZeroMQ and past it: rows are taken in the turn in which
they come, all else is received, in order, also where nobody waited for it, and nothing keeps the
loop busy.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections.abc import AsyncIterator
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem_sglang.output_socket import OutputWriter, path_beside
from tandem_sglang.outputs import RunningRows, packed, unpacked

pytest.importorskip("zmq", reason="SGLang brings it")

import zmq.asyncio

from tandem_sglang.inbox import Inbox

WAIT_SECONDS = 60.0


class Rig:
    """Both ends of a socket."""

    def __init__(self, address: str, *, past: bool = False, before: str = "") -> None:
        """`past`: what is sent goes past ZeroMQ, as outputs do. `before`: rows that are there, and
        that ZeroMQ has told of, before there is an inbox.
        """
        self._context = zmq.asyncio.Context()
        self._theirs = zmq.Context()
        socket = self._context.socket(zmq.PULL)
        socket.bind(address)
        self.sender: Any = self._theirs.socket(zmq.PUSH)
        self.sender.connect(address)
        self._zmq_sender = self.sender
        self.rows: list[str] = []
        """The names in the rows that were taken."""
        self._took = asyncio.Event()
        if before:
            self.send_rows(before)
            zmq.Socket.shadow(socket.underlying).poll(5_000)
        self.inbox = Inbox(socket, self._take)
        if past:
            self.sender = OutputWriter(path_beside(self.sender) or "")

    def send(self, *messages: bytes) -> None:
        for each in messages:
            self.sender.send(each)

    def send_rows(self, *rids: str) -> None:
        for rid in rids:
            self.send(packed(RunningRows([rid], [[1]], [0], [0], [()])))

    def send_heap(self, count: int) -> None:
        """They are all there before the loop looks."""
        self.send_rows(*(f"{number}" for number in range(count)))
        time.sleep(0.2)

    def _take(self, rows: RunningRows) -> None:
        (rid,) = rows.rids
        if rid == "bad":
            raise LookupError("no such request")
        self.rows.append(rid)
        self._took.set()

    async def until_rows(self, *rids: str) -> None:
        """Until these were taken, and no others."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.rows) < len(rids):
                self._took.clear()
                await self._took.wait()
        assert self.rows == list(rids)

    async def received(self, count: int) -> list[bytes]:
        async with asyncio.timeout(WAIT_SECONDS):
            return [await self.inbox.recv() for _ in range(count)]

    def close(self) -> None:
        self.inbox.ignore()
        self.inbox.close(linger=0)
        self.sender.close(linger=0)
        self._zmq_sender.close(linger=0)
        self._theirs.term()
        self._context.term()


@pytest.fixture(params=["zmq", "past"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    with TemporaryDirectory() as folder:  # a short path
        made = Rig(f"ipc://{folder}/inbox", past=request.param == "past")
        yield made
    made.close()


async def settled() -> None:
    """Time for what must not happen."""
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


async def test_messages_that_nobody_receives_do_not_keep_the_loop_busy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send(b"first")
    rig.send_rows("after")
    await rig.until_rows("after")
    await settled()  # ZeroMQ may tell of its connection too
    looks = 0
    loop: Any = asyncio.get_running_loop()
    select = loop._selector.select

    def counted(timeout: float | None) -> Any:
        nonlocal looks
        looks += 1
        return select(timeout)

    monkeypatch.setattr(loop._selector, "select", counted)
    await settled()
    assert looks <= 5
    rig.send(b"second")
    assert await rig.received(2) == [b"first", b"second"]


async def test_rows_come_before_what_was_sent_after_them(rig: Rig) -> None:
    for number in range(200):
        rig.send_rows(f"{number}")
        rig.send(b"%d" % number)
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    for number in range(200):
        assert await rig.received(1) == [b"%d" % number]
        assert f"{number}" in rig.rows
    assert rig.rows == [f"{number}" for number in range(200)]


async def test_many_messages_at_once_leave_others_their_turns(rig: Rig) -> None:
    rig.send_heap(1_000)
    seen = [len(rig.rows)]
    async with asyncio.timeout(WAIT_SECONDS):
        while seen[-1] < 1_000:
            await asyncio.sleep(0)
            seen.append(len(rig.rows))
    most = max(after - before for before, after in itertools.pairwise(seen))
    assert 1 <= most <= 600  # 64 of ZeroMQ's, and past it 16 KiB, a message of which is 28


async def test_what_came_before_anybody_looked_is_taken(tmp_path: Any) -> None:
    rig = Rig(f"ipc://{tmp_path}/inbox", before="early")
    await rig.until_rows("early")
    rig.close()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_nothing_is_taken_in_a_turn_that_comes_after_the_end(rig: Rig, turns: int) -> None:
    rig.send_heap(1_000)
    for _ in range(turns):
        await asyncio.sleep(0)
    rig.inbox.ignore()
    taken = len(rig.rows)
    await settled()
    assert len(rig.rows) == taken < 1_000


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (lambda rig: rig.send_rows("bad"), LookupError),
        (lambda rig: rig.send(b"\x96\xabRunningRows\x01"), msgspec.DecodeError),
    ],
    ids=["taker", "no-rows"],
)
async def test_rows_that_cannot_be_taken_fail_whoever_receives(
    rig: Rig, sent: Any, error: type[Exception]
) -> None:
    rig.send(b"before")
    sent(rig)
    rig.send_rows("after")
    assert await rig.received(1) == [b"before"]
    for _ in range(2):
        with pytest.raises(error):
            await rig.received(1)
        rig.send_rows("later")
        await settled()
    assert rig.rows == []


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


def test_counts_of_numpy_are_packed_as_numbers() -> None:
    rows = RunningRows(["a"], [[1, 2]], [np.int64(3)], [np.int32(4)], [[(np.int64(5), 0.5, "w")]])
    read = unpacked(packed(rows))
    assert read == RunningRows(["a"], [[1, 2]], [3], [4], [[(5, 0.5, "w")]])


def test_messages_of_sglang_s_own_are_no_rows() -> None:
    for message in (pickle.dumps(["RunningRows"]), msgspec.msgpack.encode(["BatchOutput"]), b""):
        assert unpacked(message) is None
