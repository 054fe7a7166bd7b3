"""A frontend before several routers at once: which it finds, keeps and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fake_router
import pytest
from fake_router import FakeRouter
from harness import Harness, Start, error_of, say_hello, say_nothing, until
from prometheus_client import CollectorRegistry
from test_frontend_handover import RECONNECTS, STREAMS, Paused, fleet_of

from tandem.byte_budget import ByteBudget
from tandem.errors import ConfigError
from tandem.upstream import routers as routers_module
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.routers import Routers
from tandem.wire import addresses
from tandem_frontend.config import FrontendConfig

Scripts = Sequence[fake_router.Script]
Serve = Callable[..., Awaitable[tuple[Harness, list[FakeRouter]]]]


@pytest.fixture
async def serve(start: Start, model_path: Path) -> AsyncIterator[Serve]:
    """`await serve(script, script, free=(8, 0), setting=value)`: a frontend before a router for
    each script, with so many free slots as all say from the start.
    """
    async with AsyncExitStack() as stack:

        async def go(
            *scripts: fake_router.Script, free: Sequence[int] = (), **settings: Any
        ) -> tuple[Harness, list[Any]]:
            fleets = [fleet_of(model_path, free_slots=each) for each in free]
            fleets = fleets or [fleet_of(model_path)] * len(scripts)
            made = [
                await stack.enter_async_context(fake_router.running(script, fleet))
                for script, fleet in zip(scripts, fleets, strict=True)
            ]
            listed = tuple(each.address for each in made)
            frontend = await start(say_hello, **{"router": listed} | settings)
            await frontend.until_metric(STREAMS, len(made), state="current")
            return frontend, made

        yield go


@pytest.mark.promise("S5-281")
async def test_a_lost_router_fails_what_it_had_and_the_others_take_what_is_new(
    serve: Serve,
) -> None:
    frontend, (lost, *others) = await serve(Paused(), say_hello, say_hello, free=(1000, 0, 0))
    had = [asyncio.create_task(frontend.chat()) for _ in range(3)]
    await lost.until(lambda router: len(router.replies) == 3)
    await lost.stop_serving()
    assert {error_of(each)[1] for each in await asyncio.gather(*had)} == {"router_lost"}
    await frontend.until_metric(STREAMS, 2, state="current")
    new = await asyncio.gather(*(frontend.chat() for _ in range(6)))
    assert {each.status_code for each in new} == {200}
    assert sum(len(each.replies) for each in others) == 6
    assert await frontend.metric(RECONNECTS, cause="lost") >= 1


@pytest.mark.promise("S5-281")
async def test_a_router_that_drains_among_others_fails_nothing(serve: Serve) -> None:
    paused = Paused()
    frontend, (drains, other) = await serve(paused, say_hello, free=(1000, 0))
    had = asyncio.create_task(frontend.chat())
    await drains.until(lambda router: len(router.replies) == 1)
    drains.drain(late=True)
    crossed = await asyncio.gather(*(frontend.chat() for _ in range(4)))
    assert {each.status_code for each in crossed} == {200}
    assert drains.refused
    assert set(drains.refused) <= set(other.replies)
    assert (len(drains.replies), len(other.replies)) == (1, 4)
    paused.go_on.set()
    assert (await had).status_code == 200


@pytest.mark.promise("S5-281")
async def test_one_router_that_comes_first_serves_while_the_others_are_away(
    start: Start, model_path: Path
) -> None:
    async with fake_router.running(say_hello, fleet_of(model_path)) as router:
        frontend = await start(say_nothing, router=("127.0.0.1:1", router.address, "127.0.0.1:2"))
        assert (await frontend.chat()).status_code == 200
        assert await frontend.metric(STREAMS, state="current") == 1


@pytest.mark.promise("S5-282")
@pytest.mark.parametrize(
    ("routers", "fault"),
    [
        ((), "names no router"),
        (("a",), "not so: 'a'"),
        (("a:1", "dns://b"), "not so: 'dns://b'"),
        (("a:0",), "not so: 'a:0'"),
        (("http://a:x",), "not so: 'http://a:x'"),
    ],
)
def test_routers_that_are_written_otherwise_are_refused(
    model_path: Path, routers: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        FrontendConfig(router=routers, model_path=str(model_path))


# --- which are found, and kept --------------------------------------------------------------------


class Names:
    """A resolver whose answers a test sets."""

    def __init__(self) -> None:
        self.ports: list[int] | None = []
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("routers", 7000)
        self.asked += 1
        if self.ports is None:
            raise OSError(-2, "no such name")
        return [str(each) for each in self.ports]


class Found:
    """Routers behind a name, each on a port of its own, and what keeps streams to them."""

    def __init__(self, names: Names, made: list[FakeRouter], **settings: Any) -> None:
        self.names = names
        self.made = made
        self.routers = Routers(
            ["dns://routers:7000"],
            UpstreamMetrics(CollectorRegistry()),
            ByteBudget(),
            resolve=names,
            **settings,
        )

    def name(self, *routers: FakeRouter) -> None:
        self.names.ports = [int(each.address.rpartition(":")[2]) for each in routers]

    @property
    def linked(self) -> list[bool]:
        return [bool(each.streams) for each in self.made]

    async def until(self, *linked: bool) -> None:
        await until(lambda: self.linked == list(linked))

    async def looked_up(self, times: int = 2) -> None:
        """So often again."""
        goal = self.names.asked + times
        await until(lambda: self.names.asked >= goal)


Find = Callable[..., Awaitable[Found]]


@pytest.fixture
async def find(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Find]:
    """`await find(count, listed=2)`: so many routers, the first of which the name stands for. Ports
    stand for IP addresses, as there is but one here.
    """
    monkeypatch.setattr(routers_module, "LOOKUP_SECONDS", 0.02)
    monkeypatch.setattr(addresses, "join", lambda host, port: f"127.0.0.1:{host}")
    async with AsyncExitStack() as stack:

        async def go(count: int, listed: int, **settings: Any) -> Found:
            made = [
                await stack.enter_async_context(
                    fake_router.running(say_hello, fleet_of(model_path))
                )
                for _ in range(count)
            ]
            found = Found(Names(), made, **settings)
            found.name(*made[:listed])
            running = asyncio.create_task(found.routers.run(Mock()))
            stack.push_async_callback(_end, running)
            return found

        yield go


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.promise("S5-282")
async def test_every_address_of_a_name_is_linked_and_new_ones_are_found(find: Find) -> None:
    found = await find(3, listed=2)
    await found.until(True, True, False)
    found.name(*found.made)
    await found.until(True, True, True)


@pytest.mark.promise("S5-282")
async def test_each_entry_has_as_many_links_as_the_others_where_places_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries may be releases, of models of their own."""
    hosts = {"many": [f"10.0.0.{each}" for each in range(1, 21)], "few": ["10.0.1.1", "10.0.1.2"]}
    dialled: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        return hosts[host]

    class Silent:
        def __init__(self, address: str, *_: Any, **__: Any) -> None:
            dialled.append(address)

        async def run(self, *_: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(routers_module, "RouterLink", Silent)
    routers = Routers(
        ["dns://many:1", "dns://few:1", "10.0.2.1:1"],
        UpstreamMetrics(CollectorRegistry()),
        ByteBudget(),
        resolve=resolve,
        most=6,
    )
    running = asyncio.create_task(routers.run(Mock()))
    await until(lambda: len(dialled) == 6)
    releases = [each.rpartition(".")[0] for each in dialled]
    assert [releases.count(f"10.0.{release}") for release in range(3)] == [3, 2, 1]
    await _end(running)


@pytest.mark.promise("S5-282")
async def test_a_router_that_is_gone_is_kept_until_its_stream_ends_and_not_dialled_again(
    find: Find,
) -> None:
    found = await find(2, listed=2)
    await found.until(True, True)
    found.name(found.made[0])
    await found.looked_up(3)
    assert found.linked == [True, True]
    gone = found.made[1]
    gone.drop()
    await found.until(True, False)
    await asyncio.sleep(0.5)  # longer than the pause before a dial
    assert found.linked == [True, False]
    found.name(*found.made)
    await found.until(True, True)


@pytest.mark.promise("S5-282")
async def test_a_name_that_is_not_resolved_changes_nothing(
    find: Find, caplog: pytest.LogCaptureFixture
) -> None:
    found = await find(2, listed=2)
    await found.until(True, True)
    found.names.ports = None
    await found.looked_up(3)
    found.made[0].drop()
    await found.until(False, True)
    await found.until(True, True)
    assert len([each for each in caplog.messages if "is not resolved" in each]) == 1


@pytest.mark.promise("S5-282")
async def test_no_more_routers_are_linked_than_the_most(find: Find) -> None:
    draws: list[int] = []

    def draw(below: int) -> int:
        draws.append(below)
        return below - 1

    found = await find(4, listed=4, most=2, draw=draw)
    await found.until(False, False, True, True)
    await found.looked_up(3)
    assert found.linked == [False, False, True, True]
    assert draws == [4, 3]


@pytest.mark.promise("S5-282")
async def test_a_router_that_cannot_be_reached_gives_its_place_to_another(find: Find) -> None:
    found = await find(3, listed=3, most=1, draw=lambda below: below - 1)
    await found.until(False, False, True)
    await found.made[2].stop_serving()
    await found.until(False, True, False)


@pytest.mark.promise("S5-282")
async def test_a_router_that_was_reached_keeps_its_place(find: Find) -> None:
    found = await find(2, listed=2, most=1, draw=lambda below: 0)
    await found.until(True, False)
    streams = found.made[0].streams
    (first,) = streams
    found.made[0].drop()
    await until(lambda: first not in streams)
    await found.until(True, False)


@pytest.mark.promise("S5-282")
async def test_a_lost_stream_has_the_name_looked_up_at_once(
    find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers_module, "LOOKUP_SECONDS", 3600.0)
    found = await find(2, listed=1)
    await found.until(True, False)
    found.name(found.made[1])
    await found.made[0].stop_serving()
    await found.until(False, True)


@pytest.mark.promise("S5-282")
async def test_an_address_that_is_listed_twice_is_one_router(model_path: Path) -> None:
    async with fake_router.running(say_hello, fleet_of(model_path)) as router:
        metrics = UpstreamMetrics(CollectorRegistry())
        routers = Routers([router.address] * 2, metrics, ByteBudget())
        running = asyncio.create_task(routers.run(Mock()))
        await router.until(lambda router: bool(router.streams))
        await asyncio.sleep(0.1)
        assert len(router.streams) == 1
        await _end(running)
