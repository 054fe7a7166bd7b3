"""A fixed list of routers, of which some are there."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

import pytest
from fake_fleet import soon, until

from tandem_router.config import RouterConfig
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed, Listing, make_discovery
from tandem_router.discovery import static as static_discovery
from tandem_router.discovery.static import StaticDiscovery, is_there

WORKERS = (Listed("p:1", Phase.PREFILL), Listed("d:1", Phase.DECODE))


class Peers:
    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.asked: list[str] = []

    async def probe(self, address: str) -> bool:
        self.asked.append(address)
        return address not in self.gone


def _discovery(peers: Peers, *names: str) -> StaticDiscovery:
    return StaticDiscovery(
        prefill=("p:1",), decode=("d:1",), peers=names, probe=peers.probe, interval_seconds=0.0
    )


@pytest.mark.promise("S5-276")
async def test_a_router_counts_while_it_is_there() -> None:
    peers = Peers()
    async with aclosing(_discovery(peers, "a:1", "b:1").listings()) as listings:
        assert await anext(listings) == Listing(WORKERS, frozenset({"a:1", "b:1"}))
        assert not peers.asked, "a router that starts takes nothing over before it knows"
        peers.gone = {"a:1"}
        assert await soon(anext(listings)) == Listing(WORKERS, frozenset({"b:1"}))
        peers.gone = {"b:1"}
        assert await soon(anext(listings)) == Listing(WORKERS, frozenset({"a:1"}))
        peers.gone = set()
        assert (await soon(anext(listings))).routers == {"a:1", "b:1"}
        waiting = asyncio.ensure_future(anext(listings))
        asked = len(peers.asked)
        await until(lambda: len(peers.asked) > asked + 10)
        assert not waiting.done(), "nothing has changed"
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_list_without_other_routers_is_given_once_and_asks_nobody() -> None:
    async with aclosing(_discovery(Peers()).listings()) as listings:
        assert [each async for each in listings] == [Listing(WORKERS)]


@pytest.mark.promise("S5-276")
async def test_a_router_is_there_while_its_port_takes_connections() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not await soon(is_there(address)), "it does not listen yet"
        listener.listen()
        assert await soon(is_there(address))
        taken, _ = listener.accept()
        with taken:
            taken.settimeout(5)
            assert taken.recv(1) == b"", "it is closed again"
    assert not await soon(is_there(address))


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
async def test_what_can_be_no_name_is_not_there(host: str) -> None:
    assert not await soon(is_there(f"{host}:1"))


async def test_a_router_that_does_not_answer_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(static_discovery, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", hang)
    assert not await soon(is_there("127.0.0.1:1"))


SETTINGS = {"prefill": ("p:1",), "decode": ("d:1",), "routers": ("a:1", "b:1"), "listen": "b:1"}


@pytest.mark.parametrize(("number", "peers"), [(1, {"a:1"}), (0, set())])
async def test_the_settings_name_the_others(number: int, peers: set[str]) -> None:
    """Nobody is asked where nothing is divided."""
    discovery = make_discovery(RouterConfig(**SETTINGS, decode_routers=number))
    async with aclosing(discovery.listings()) as listings:
        assert await anext(listings) == Listing(WORKERS, frozenset(peers))
