"""A frontend whose routers have had no pair of its model: what waits for the first, for how long,
and whether clients are sent to it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import MODEL, Harness, Start, error_of, say_hello, serving
from test_frontend_handover import fleet_of

from tandem.v1 import router_pb2

pytestmark = pytest.mark.promise("S5-223")


def nothing_yet(
    *, expected: tuple[str, ...] = (), coming: tuple[str, ...] = (), wait_ms: int = 20_000
) -> router_pb2.Fleet:
    """A router that has had no pair."""
    return router_pb2.Fleet(expected=expected, coming=coming, pair_wait_ms=wait_ms)


@asynccontextmanager
async def fresh(model_path: Path, fleet: router_pb2.Fleet) -> AsyncIterator[Harness]:
    """A frontend that would wait a tenth of a second by itself, and its router."""
    waits = {"router_wait_seconds": 0.1}
    async with serving(model_path, say_hello, waits, fleet=fleet, ready=False) as frontend:
        await frontend.router.until(lambda router: bool(router.streams))
        yield frontend


async def test_a_request_waits_for_the_first_pair_of_an_expected_model(model_path: Path) -> None:
    async with fresh(model_path, nothing_yet(expected=("other", MODEL))) as here:
        await here.until("/ready", 200)
        asked = asyncio.create_task(here.chat())
        await asyncio.sleep(0.5)
        assert not asked.done()
        here.router.change_fleet(fleet_of(model_path))
        assert (await asked).status_code == 200
        assert len(here.router.replies) == 1


@pytest.mark.parametrize("coming", [MODEL, ""])
async def test_workers_that_are_listed_are_waited_for_but_attract_no_clients(
    model_path: Path, coming: str
) -> None:
    async with fresh(model_path, nothing_yet(coming=(coming,))) as here:
        asked = asyncio.create_task(here.chat())
        await asyncio.sleep(0.5)
        assert not asked.done()
        assert (await here.http.get("/ready")).status_code == 503
        here.router.change_fleet(fleet_of(model_path))
        assert (await asked).status_code == 200


async def test_what_is_expected_of_others_is_not_waited_for(model_path: Path) -> None:
    async with fresh(model_path, nothing_yet(expected=("other",), coming=("other",))) as here:
        response = await here.chat()
        assert error_of(response) == (503, "no_pair", None)
        assert (await here.http.get("/ready")).status_code == 503


async def test_a_model_that_has_another_tokenizer_is_not_waited_for(model_path: Path) -> None:
    fleet = fleet_of(model_path, tokenizer_sha256="another")
    fleet.MergeFrom(nothing_yet(expected=(MODEL,)))
    async with fresh(model_path, fleet) as here:
        assert error_of(await here.chat()) == (503, "no_pair", None)
        assert (await here.http.get("/ready")).status_code == 503


async def test_the_wait_is_the_router_s_or_the_request_s_own(model_path: Path) -> None:
    async with fresh(model_path, nothing_yet(expected=(MODEL,), wait_ms=400)) as here:
        assert error_of(await here.chat()) == (503, "no_pair", None)
    async with fresh(model_path, nothing_yet(expected=(MODEL,))) as here:
        assert error_of(await here.chat(timeout=0.3)) == (503, "no_pair", None)


async def test_a_router_that_is_replaced_by_one_without_a_pair_is_waited_for_as_long(
    model_path: Path,
) -> None:
    async with fresh(model_path, fleet_of(model_path)) as here:
        await here.until("/ready", 200)
        here.router.fleet = nothing_yet(expected=(MODEL,))
        here.router.drop()
        await here.router.until(lambda router: not router.streams)
        await here.router.until(lambda router: bool(router.streams))
        await here.until("/ready", 200)
        asked = asyncio.create_task(here.chat())
        await asyncio.sleep(0.5)
        assert not asked.done()
        here.router.change_fleet(fleet_of(model_path))
        assert (await asked).status_code == 200


@pytest.mark.promise("S5-560")
async def test_a_frontend_without_a_pair_is_ready_and_says_that_requests_wait(start: Start) -> None:
    frontend = await start(say_hello)
    assert (await frontend.http.get("/ready/pair")).status_code == 200
    frontend.router.change_fleet(frontend.fleet(ready_pairs=0, waits=True))
    assert error_of(await frontend.until("/ready/pair", 503)) == (503, "no_pair", None)
    assert (await frontend.http.get("/ready")).status_code == 200
    assert (await frontend.http.get("/health")).status_code == 200
    frontend.router.change_fleet(frontend.fleet())
    await frontend.until("/ready/pair", 200)
    frontend.router.change_fleet(frontend.fleet(ready_pairs=0))
    await frontend.until("/ready", 503)
    assert (await frontend.http.get("/ready/pair")).status_code == 503
