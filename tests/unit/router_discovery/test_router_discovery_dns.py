"""Discovery by names, with a resolver that says what the test says."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
from fake_fleet import soon, until

from tandem.wire import addresses
from tandem_router.config import RouterConfig
from tandem_router.discovery import Listing, Trouble, make_discovery
from tandem_router.discovery.dns import DnsDiscovery

NOT_FOUND = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class Names:
    """What the resolver knows."""

    def __init__(self, **names: Sequence[str] | OSError) -> None:
        self.names = dict(names)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        found = self.names[host]
        if isinstance(found, OSError):
            raise found
        return found


class Looked:
    def __init__(self, discovery: DnsDiscovery) -> None:
        self.keeper = discovery.keeper
        self.listings: AsyncGenerator[Listing] = discovery.listings()

    async def next(self) -> list[str]:
        listing = await soon(anext(self.listings))
        return [
            *(f"{each.phase} {each.address}" for each in listing.workers),
            *(f"router {each}" for each in sorted(listing.routers)),
        ]


@asynccontextmanager
async def looking(names: Names) -> AsyncIterator[Looked]:
    discovery = DnsDiscovery(
        prefill=("p:7100",),
        decode=("d:7200",),
        routers=("r:7000",) if "r" in names.names else (),
        resolve=names.resolve,
        interval_seconds=0.01,
    )
    looked = Looked(discovery)
    async with aclosing(looked.listings):
        yield looked


async def test_every_address_of_a_name_is_a_worker() -> None:
    names = Names(p=["10.0.0.1", "10.0.0.2"], d=["fd00::3"])
    async with looking(names) as found:
        assert await found.next() == [
            "prefill 10.0.0.1:7100",
            "prefill 10.0.0.2:7100",
            "decode [fd00::3]:7200",
        ]
        names.names["p"] = ["10.0.0.2"]
        assert await found.next() == ["prefill 10.0.0.2:7100", "decode [fd00::3]:7200"]


async def test_a_name_that_is_not_resolved_keeps_what_was_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names(p=["10.0.0.1"], d=["10.0.0.3"])
    async with looking(names) as found:
        await found.next()
        names.names["p"] = NOT_FOUND
        with caplog.at_level(logging.WARNING):
            waiting = asyncio.gather(found.next())
            await until(lambda: found.keeper.errors[Trouble.LOOKUP] > 2)
            assert not waiting.done()
        assert [each.__dict__["address"] for each in caplog.records] == ["p:7100"], "said once"
        age = found.keeper.age_seconds()
        await until(lambda: found.keeper.age_seconds() > age + 0.05)
        names.names["p"] = ["10.0.0.2"]
        assert await soon(waiting) == [["prefill 10.0.0.2:7100", "decode 10.0.0.3:7200"]]
        await until(lambda: found.keeper.age_seconds() < age)


async def test_nothing_is_listed_before_the_resolver_has_answered_once() -> None:
    names = Names(p=NOT_FOUND, d=NOT_FOUND)
    async with looking(names) as found:
        waiting = asyncio.gather(found.next())
        await until(lambda: found.keeper.errors[Trouble.LOOKUP] > 4)
        assert not waiting.done()
        names.names["d"] = ["10.0.0.3"]
        assert await soon(waiting) == [["decode 10.0.0.3:7200"]]


@pytest.mark.promise("S5-277")
async def test_every_address_of_a_router_s_name_is_a_router() -> None:
    names = Names(p=["10.0.0.1"], d=["10.0.0.3"], r=["10.0.0.5", "fd00::6"])
    workers = ["prefill 10.0.0.1:7100", "decode 10.0.0.3:7200"]
    async with looking(names) as found:
        routers = ["router 10.0.0.5:7000", "router [fd00::6]:7000"]
        assert await found.next() == [*workers, *routers]
        names.names["r"] = ["10.0.0.5"]
        assert await found.next() == [*workers, "router 10.0.0.5:7000"]
        names.names["r"] = NOT_FOUND
        waiting = asyncio.gather(found.next())
        await until(lambda: found.keeper.errors[Trouble.LOOKUP] > 2)
        assert not waiting.done(), "what was known of it stays"
        names.names["r"] = ["10.0.0.7"]
        assert await soon(waiting) == [[*workers, "router 10.0.0.7:7000"]]


async def test_a_list_of_routers_alone_is_none() -> None:
    """It would say that there are no workers."""
    names = Names(p=NOT_FOUND, d=NOT_FOUND, r=["10.0.0.5"])
    async with looking(names) as found:
        waiting = asyncio.gather(found.next())
        await until(lambda: found.keeper.errors[Trouble.LOOKUP] > 4)
        assert not waiting.done()
        names.names["d"] = ["10.0.0.3"]
        assert await soon(waiting) == [["decode 10.0.0.3:7200", "router 10.0.0.5:7000"]]


@pytest.mark.parametrize(("number", "routers"), [(1, {"127.0.0.1:3", "[::1]:4"}), (0, set())])
async def test_the_settings_name_the_routers(number: int, routers: set[str]) -> None:
    config = RouterConfig(
        discovery="dns",
        prefill=("127.0.0.1:1",),
        routers=("127.0.0.1:3", "[::1]:4"),
        listen="127.0.0.1:3",
        decode_routers=number,
    )
    async with aclosing(make_discovery(config).listings()) as listings:
        assert (await soon(anext(listings))).routers == routers


async def test_the_system_s_resolver_is_asked() -> None:
    assert await soon(addresses.resolve("127.0.0.1", 1)) == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["a..b", f"{'x' * 64}.example"])
async def test_what_can_be_no_name_is_a_failed_look_up(name: str) -> None:
    with pytest.raises(OSError, match="label"):
        await soon(addresses.resolve(name, 1))
    config = RouterConfig(discovery="dns", prefill=("127.0.0.1:1",), decode=("[::1]:2",))
    discovery = make_discovery(config)
    async with aclosing(discovery.listings()) as listings:
        found = await soon(anext(listings))
        assert [each.address for each in found.workers] == ["127.0.0.1:1", "[::1]:2"]
