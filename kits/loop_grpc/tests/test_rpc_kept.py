"""What a connection keeps, and how long it is kept itself, has a bound."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from echo_service import MOST_BYTES, Echo, Stub, open_channel, serving
from go_end import GO
from raw_peer import dialled, message
from served_end import GREETING, request, served

from tandem_loop_grpc import connections, frames, server
from tandem_loop_grpc.connection import CONNECTION_WINDOW
from tandem_loop_grpc.connections import ConnectionLimits
from tandem_loop_grpc.frames import Code, frame
from tandem_loop_grpc.server import Served
from tandem_loop_grpc.stream import WINDOW

PATIENCE = 10.0


def _of(stream: int) -> bytes:
    return frame(frames.DATA, 0, stream, message(bytes(16_000)))


async def _fill(connection: Served, calls: int) -> None:
    """As much as the windows of so many calls allow, whose servicer does not read."""
    connection.data_received(GREETING + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**30}))
    connection.data_received(frames.window_update(0, 2**30))
    for number in range(1, 2 * calls, 2):
        connection.data_received(request(number) + frame(frames.DATA, 0, number, message(b"hold")))
        await asyncio.sleep(0)
    for number in range(1, 2 * calls, 2):
        for _ in range(WINDOW // len(_of(1)) - 1):
            connection.data_received(_of(number))
        for _ in range(WINDOW // len(_of(1))):
            await asyncio.sleep(0)


@pytest.mark.promise("S6-404")
async def test_what_nobody_reads_does_not_open_the_connections_window() -> None:
    """A6: 99 MiB were kept of one connection."""
    echo = Echo()
    connection, transport = served(echo)
    await _fill(connection, calls=7)
    assert connection.unread > 6 * WINDOW
    again = [
        frames.number(each)
        for kind, stream, each in transport.take()
        if kind == frames.WINDOW_UPDATE and stream == 0
    ]
    assert sum(again) <= CONNECTION_WINDOW
    echo.hold.set()
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert connection.unread < WINDOW
    assert any(kind == frames.WINDOW_UPDATE and not stream for kind, stream, _ in transport.take())
    connection.abort("the test is over")


@pytest.mark.promise("S6-404")
async def test_more_than_the_connections_window_ends_it() -> None:
    connection, transport = served(Echo())
    await _fill(connection, calls=9)
    assert connection.over
    (goaway,) = [each for kind, _, each in transport.take() if kind == frames.GOAWAY]
    assert frames.read_goaway(goaway)[1] == Code.FLOW_CONTROL_ERROR


class Held:
    """What one connection holds: with more than `most` bytes it is closed."""

    def __init__(self, most: int, end: Callable[[], object]) -> None:
        self.size = 0
        self._most = most
        self._end = end

    def grow(self, size: int) -> None:
        self.size += size
        if self.size > self._most:
            self._end()

    def give_back(self, size: int) -> None:
        self.size -= size
        assert self.size >= 0

    def close(self) -> None:
        self.size = 0


class Budget:
    def __init__(self, most: int) -> None:
        self.connections: list[Held] = []
        self._most = most

    @property
    def held(self) -> int:
        return sum(each.size for each in self.connections)

    def allotment(self, end: Callable[[], object]) -> Held:
        self.connections.append(Held(self._most, end))
        return self.connections[-1]


@pytest.mark.promise("S6-404")
async def test_what_nobody_reads_takes_of_the_budget() -> None:
    """And the connection that the budget ends is closed, and no other."""
    budget = Budget(4 * WINDOW)
    small, _ = served(Echo(), budget=budget)
    await _fill(small, calls=1)
    assert budget.held >= WINDOW // 2
    large, transport = served(Echo(), budget=budget)
    await _fill(large, calls=5)
    assert large.over
    assert not small.over
    (goaway,) = [each for kind, _, each in transport.take() if kind == frames.GOAWAY]
    assert frames.read_goaway(goaway)[1] == Code.ENHANCE_YOUR_CALM
    small.abort("the test is over")
    assert budget.held == 0


@pytest.mark.promise("S6-406")
@pytest.mark.parametrize("limits", [{"most": 1}, {"most_of_a_client": 1}])
async def test_more_connections_than_there_may_be_are_closed(limits: dict[str, int]) -> None:
    async with (
        serving("ours", Echo(), limits=ConnectionLimits(**limits)) as port,
        asyncio.timeout(PATIENCE),
    ):
        async with dialled(port) as first:
            await first.find(frames.SETTINGS)
            async with dialled(port) as second:
                assert await second.ending() == Code.ENHANCE_YOUR_CALM
            first.send(first.request(1), frame(frames.DATA, frames.END_STREAM, 1, message(b"x")))
            assert (await first.find(frames.DATA))[3] == message(b"x")
        async with open_channel("core", port) as channel:
            assert await Stub(channel).one(b"room", wait_for_ready=True) == b"room"


class Clock:
    """Stands for asyncio and its loop: a timer is due once the test has let so much time pass."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, asyncio.Handle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name, None) or getattr(asyncio.get_running_loop(), name)

    def get_running_loop(self) -> Clock:
        return self

    def call_later(self, seconds: float, call: Any, *given: Any) -> asyncio.Handle:
        handle = asyncio.Handle(call, given, asyncio.get_running_loop())
        self._timers.append((self._now + seconds, handle))
        return handle

    async def let_pass(self, seconds: float) -> None:
        self._now += seconds
        due = [each for at, each in self._timers if at <= self._now]
        self._timers = [each for each in self._timers if each[0] > self._now]
        for handle in due:
            if not handle.cancelled():
                handle._run()
        await turns()


async def turns() -> None:
    """For calls to begin, and to answer."""
    for _ in range(20):
        await asyncio.sleep(0)


def _goaways(sent: list[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
    return [frames.read_goaway(each) for kind, _, each in sent if kind == frames.GOAWAY]


@pytest.mark.promise("S6-406")
@pytest.mark.parametrize("name", ["idle_seconds", "age_seconds"])
async def test_a_connection_that_is_idle_or_old_is_closed_by_and_by(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is told first, and what it begins until then is served."""
    clock = Clock()
    monkeypatch.setattr(server, "asyncio", clock)
    monkeypatch.setattr(connections, "asyncio", clock)
    limits: dict[str, float] = {"idle_seconds": inf, "age_seconds": inf, name: 100.0}
    connection, transport = served(Echo(), limits=ConnectionLimits(**limits))  # type: ignore[arg-type]
    connection.data_received(GREETING)
    await clock.let_pass(89.0)
    assert not _goaways(transport.take())
    await clock.let_pass(11.0)
    assert _goaways(transport.take()) == [(frames.LAST_STREAM, Code.NO_ERROR)]
    late, on = (frame(frames.DATA, 0, 1, message(each)) for each in (b"late", b"goes on"))
    connection.data_received(request(1) + late)
    await turns()
    assert (frames.DATA, 1, message(b"late")) in transport.take()
    await clock.let_pass(5.0)
    assert _goaways(transport.take()) == [(1, Code.NO_ERROR)]
    connection.data_received(on)
    await turns()
    assert (frames.DATA, 1, message(b"goes on")) in transport.take()
    assert not connection.over
    connection.data_received(frame(frames.DATA, frames.END_STREAM, 1))
    await turns()
    assert connection.over


@pytest.mark.promise("S6-406")
@pytest.mark.parametrize("kind", ["core", "ours", pytest.param("go", marks=GO)])
async def test_calls_go_on_across_connections_that_end_of_age(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_RETIRING_SECONDS", 0.05)
    async with (
        serving("ours", Echo(), limits=ConnectionLimits(age_seconds=0.02)) as port,
        open_channel(kind, port) as channel,
    ):
        stub = Stub(channel)
        long = stub.talk()
        for _ in range(40):
            await long.write(b"x")
            assert await long.read() == b"x"
            assert await stub.one(b"x", timeout=PATIENCE) == b"x"
        long.cancel()


@pytest.mark.promise("S6-403")
@pytest.mark.parametrize("agreed", [None, "http/1.1"])
async def test_tls_that_did_not_agree_on_h2_is_refused(agreed: str | None) -> None:
    transport: Any = served()[1]
    security = SimpleNamespace(
        selected_alpn_protocol=lambda: agreed, getpeercert=lambda: {"subjectAltName": ()}
    )
    said = {"ssl_object": security}
    transport.get_extra_info = lambda name, default=None: said.get(name, default)
    connection = Served(server.Listener(ssl.create_default_context(), most_bytes=MOST_BYTES))
    connection.connection_made(transport)
    assert connection.over
    (goaway,) = [each for kind, _, each in transport.take() if kind == frames.GOAWAY]
    assert frames.read_goaway(goaway)[1] == Code.INADEQUATE_SECURITY
