"""What grpc-go does by and by: pings, and connections that end of age."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from echo_service import Echo, Stub, open_channel, serving
from go_end import GO

from tandem_loop_grpc import frames
from tandem_loop_grpc.connection import PeerConnection
from tandem_loop_grpc.dialled import Dialled

pytestmark = [*GO, pytest.mark.promise("S5-445")]

PATIENCE = 60.0
KEEPALIVE = bytes(frames.PING_BYTES)
"""What grpc-go's pings for that hold; those by which it measures a connection hold something."""


@pytest.fixture
def pings(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[None]:
    """Those that ask whether an end of ours is there."""
    found: asyncio.Queue[None] = asyncio.Queue()
    answer = PeerConnection._on_ping

    def on_ping(self: PeerConnection, flags: int, number: int, payload: bytes) -> None:
        answer(self, flags, number, payload)
        if payload == KEEPALIVE and not flags & frames.ACK:
            found.put_nowait(None)

    monkeypatch.setattr(PeerConnection, "_on_ping", on_ping)
    return found


async def echoes(call: Any) -> None:
    await call.write(b"x")
    assert await call.read() == b"x"


async def test_a_client_that_pings_keeps_its_connection(pings: asyncio.Queue[None]) -> None:
    """grpc-go pings every 10 seconds at most. What is not answered ends its connection."""
    async with (
        asyncio.timeout(PATIENCE),
        serving("ours", Echo()) as port,
        open_channel("go", port, keepalive="10s") as channel,
    ):
        call = Stub(channel).talk()
        await echoes(call)
        await pings.get()
        await echoes(call)
        call.cancel()


async def test_a_servers_pings_are_answered_and_its_calls_outlive_its_age(
    pings: asyncio.Queue[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpc-go says GOAWAY twice: the second time once a ping behind the first is answered."""
    goaways: asyncio.Queue[int] = asyncio.Queue()
    leave = Dialled.left

    def left(self: Dialled, last: int, *said: Any) -> None:
        leave(self, last, *said)
        goaways.put_nowait(last)

    monkeypatch.setattr(Dialled, "left", left)
    async with (
        asyncio.timeout(PATIENCE),
        serving("go", Echo(), keepalive="1s", age="2s") as port,
        open_channel("ours", port) as channel,
    ):
        stub = Stub(channel)
        call = stub.talk()
        await echoes(call)
        await pings.get()
        assert [await goaways.get(), await goaways.get()] == [frames.LAST_STREAM, 1]
        assert await stub.one(b"elsewhere", timeout=PATIENCE) == b"elsewhere"
        await echoes(call)
        call.cancel()
