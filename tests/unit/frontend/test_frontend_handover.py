"""Routers come and go behind one address: what a client notices of it, which is nothing unless a
router is lost while it has the client's request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_router
import pytest
from fake_router import FakeRouter, Reply
from harness import (
    BOTH_WAYS,
    CHAT,
    COMPLETION,
    MODEL,
    PATIENCE,
    Harness,
    Start,
    error_of,
    events,
    request_bytes,
    say_hello,
    say_nothing,
    stream_text,
    until,
)
from tcp_switch import TcpSwitch, tcp_switch

from tandem.engine import model_files
from tandem.v1 import router_pb2

WAITING = "tandem_frontend_waiting_requests"
STREAMS = "tandem_frontend_router_streams"
RECONNECTS = "tandem_frontend_router_reconnects_total"
RESUBMITTED = "tandem_frontend_resubmitted_prompts_total"


@dataclass
class Service:
    """A frontend before an address that leads to one of several routers."""

    frontend: Harness
    switch: TcpSwitch
    routers: list[FakeRouter]

    def lead_to(self, router: FakeRouter) -> None:
        self.switch.target = port_of(router)

    async def restarted(self, router: FakeRouter, *, beat_ms: int) -> FakeRouter:
        """The frontend has a new stream to it, at whose begin it promises this."""
        router.beat_ms = beat_ms
        router.drop()
        await router.until(lambda router: not router.streams)
        await router.until(lambda router: len(router.streams) == 1)
        return router

    async def streaming(self, **fields: Any) -> tuple[AsyncIterator[str], asyncio.Task[Any]]:
        """A chat's lines as they come, and the task that reads them."""
        lines: asyncio.Queue[str] = asyncio.Queue()

        async def read() -> str:
            async with self.frontend.http.stream(
                "POST", "/v1/chat/completions", json={**CHAT, "stream": True, **fields}
            ) as response:
                body = ""
                async for text in response.aiter_text():
                    body += text
                    lines.put_nowait(text)
                return body

        async def each() -> AsyncIterator[str]:
            while True:
                yield await asyncio.wait_for(lines.get(), PATIENCE)

        return each(), asyncio.create_task(read())


Serve = Callable[..., Awaitable[Service]]


@pytest.fixture
async def serve(start: Start, model_path: Path) -> AsyncIterator[Serve]:
    """`await serve(script, script, setting=value)`: a router for each script, the first in use."""
    async with AsyncExitStack() as stack:

        async def go(*scripts: fake_router.Script, **settings: Any) -> Service:
            routers = [
                await stack.enter_async_context(fake_router.running(script, fleet_of(model_path)))
                for script in scripts
            ]
            switch = await stack.enter_async_context(tcp_switch(port_of(routers[0])))
            frontend = await start(say_hello, **{"router": (switch.address,)} | settings)
            return Service(frontend, switch, routers)

        yield go


def fleet_of(model_path: Path, **changes: Any) -> router_pb2.Fleet:
    sha256 = model_files.tokenizer_sha256(model_path)
    return fake_router.fleet(**{"model": MODEL, "tokenizer_sha256": sha256} | changes)


def port_of(router: FakeRouter) -> int:
    return int(router.address.rpartition(":")[2])


class Paused:
    """A script that shows a row and goes on when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await self.go_on.wait()
        reply.text("lo!")
        reply.finish(completion_tokens=2)


async def test_a_draining_router_keeps_what_is_open_and_another_gets_what_is_new(
    serve: Serve,
) -> None:
    paused = Paused()
    service = await serve(paused, say_hello)
    first, second = service.routers
    lines, reading = await service.streaming()
    await anext(lines)
    service.lead_to(second)
    first.drain()
    assert (await service.frontend.chat()).status_code == 200
    assert (len(first.replies), len(second.replies)) == (1, 1)
    await service.frontend.until_metric(STREAMS, 1, state="old")
    assert await service.frontend.metric(STREAMS, state="current") == 1
    paused.go_on.set()
    assert stream_text(events(await reading)) == "Hello!"
    await first.until(lambda router: not router.streams)  # it is hung up once nothing is open
    await service.frontend.until_metric(STREAMS, 0, state="old")
    assert await service.frontend.metric(RECONNECTS, cause="draining") == 1
    assert await service.frontend.metric(RECONNECTS, cause="lost") == 0


async def test_a_client_that_leaves_is_cancelled_at_the_draining_router_that_has_its_request(
    serve: Serve,
) -> None:
    service = await serve(Paused(), say_hello)
    first, second = service.routers
    lines, reading = await service.streaming()
    kept, reading_kept = await service.streaming()
    await anext(lines)
    await anext(kept)
    service.lead_to(second)
    first.drain()
    await second.until(lambda router: bool(router.streams))
    reading.cancel()
    await first.until(lambda router: len(router.cancels) == 1)
    assert first.cancels[0] in first.replies
    assert second.cancels == []
    reading_kept.cancel()
    await first.until(lambda router: not router.streams)


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": [[1], [2]], "n": 2}])
async def test_what_a_draining_router_refuses_is_submitted_to_the_next(
    serve: Serve, fields: dict[str, Any]
) -> None:
    service = await serve(say_hello, say_hello)
    first, second = service.routers
    first.drain(late=True)
    service.lead_to(second)
    response = await service.frontend.complete(**fields)
    assert response.status_code == 200
    assert {choice["text"] for choice in response.json()["choices"]} == {"Hello!"}
    assert first.refused == list(second.replies)
    assert first.replies == {}
    assert await service.frontend.metric(RESUBMITTED) == len(first.refused)


async def test_what_a_router_neither_admitted_nor_refused_before_it_ended_is_submitted_again(
    serve: Serve,
) -> None:
    """A submit that arrives after the router's last look at its stream."""
    service = await serve(say_nothing, say_hello)
    first, second = service.routers
    asked = asyncio.create_task(service.frontend.chat())
    await first.until(lambda router: len(router.replies) == 1)
    service.lead_to(second)
    first.drain()
    first.drop()
    assert (await asked).json()["choices"][0]["message"]["content"] == "Hello!"
    assert list(first.replies) == list(second.replies)


@pytest.mark.parametrize("shown", [False, True])
async def test_a_refusal_by_a_worker_and_one_of_what_was_shown_are_errors(
    serve: Serve, shown: bool
) -> None:
    async def script(reply: Reply) -> None:
        if shown:
            reply.text("Hel")
            await reply.flush()
            first.drain()
        first.refuse(reply)
        await reply.cancelled.wait()

    service = await serve(script, say_hello)
    first, second = service.routers
    service.lead_to(second)
    response = await service.frontend.chat()
    assert error_of(response) == (503, "draining", None)
    assert second.replies == {}
    assert await service.frontend.metric(RESUBMITTED) == 0
    assert await service.frontend.metric(RECONNECTS) == shown


async def test_a_dial_that_reaches_the_draining_router_again_is_repeated_until_another_answers(
    serve: Serve,
) -> None:
    service = await serve(say_hello, say_hello)
    first, second = service.routers
    before = service.switch.connections
    first.drain()
    await service.frontend.until("/ready", 503)  # it knows
    asked = asyncio.create_task(service.frontend.chat())
    await until(lambda: service.switch.connections, lambda count: count >= before + 3)
    assert await service.frontend.metric(WAITING, missing="router") == 1
    service.lead_to(second)
    assert (await asked).status_code == 200
    assert (first.replies, first.refused, len(second.replies)) == ({}, [], 1)


@BOTH_WAYS
async def test_a_router_that_is_lost_fails_what_it_had_and_nothing_else(
    serve: Serve, stream: bool
) -> None:
    service = await serve(Paused(), say_hello)
    second = service.routers[1]
    had = asyncio.create_task(service.frontend.chat(stream=stream))
    await service.frontend.until_metric("tandem_frontend_completion_tokens_total", 1)
    service.lead_to(second)
    service.switch.cut()
    failed = await had
    new = [asyncio.create_task(service.frontend.chat()) for _ in range(8)]
    if stream:
        error = json.loads(failed.text.split("\n\n")[-2].removeprefix("data: "))["error"]
        assert error["code"] == "router_lost"
    else:
        assert error_of(failed) == (503, "router_lost", None)
        assert failed.headers["retry-after"] == "1"
    assert {answer.status_code for answer in await asyncio.gather(*new)} == {200}
    assert len(second.replies) == 8
    assert await service.frontend.metric(RECONNECTS, cause="lost") == 1


@pytest.mark.promise("S5-561")
@BOTH_WAYS
async def test_what_waits_at_a_router_that_is_lost_is_answered_by_the_next(
    serve: Serve, stream: bool
) -> None:
    service = await serve(say_nothing, say_hello)
    first, second = service.routers
    first.begins = False
    waits = asyncio.create_task(service.frontend.chat(stream=stream))
    await first.until(lambda router: len(router.replies) == 1)
    service.lead_to(second)
    service.switch.cut()
    assert (await waits).status_code == 200
    assert len(second.replies) == 1


@pytest.mark.promise("S6-170")
async def test_a_router_that_no_longer_says_anything_is_given_up(serve: Serve) -> None:
    """Its connection stands: a thread of gRPC's answers for a loop that hangs."""
    service = await serve(Paused(), say_hello, router_silence_seconds=0.6)
    first, second = service.routers
    silent = await service.restarted(first, beat_ms=100)
    had = asyncio.create_task(service.frontend.chat())
    await silent.until(lambda router: len(router.replies) == 1)
    service.lead_to(second)
    assert error_of(await had) == (503, "router_lost", None)
    assert (await service.frontend.chat()).status_code == 200
    assert len(second.replies) == 1
    assert await service.frontend.metric(RECONNECTS, cause="lost") >= 2


async def test_a_router_that_promises_no_sign_of_life_may_be_silent(serve: Serve) -> None:
    paused = Paused()
    service = await serve(paused, router_silence_seconds=0.1)
    had = asyncio.create_task(service.frontend.chat())
    await service.routers[0].until(lambda router: len(router.replies) == 1)
    await asyncio.sleep(0.5)
    paused.go_on.set()
    assert (await had).status_code == 200


async def test_old_streams_do_not_pile_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.upstream.router_link.MAX_OLD_STREAMS", 2)
    scripts = [Paused() for _ in range(4)]
    service = await serve(*scripts)
    readings = []
    for router, after in zip(service.routers, [*service.routers[1:], None], strict=True):
        lines, reading = await service.streaming()
        await anext(lines)
        readings.append(reading)
        if after is not None:
            service.lead_to(after)
            router.drain()
            await after.until(lambda router: bool(router.streams))
    assert '"code":"router_lost"' in await readings[0]
    await service.frontend.until_metric(STREAMS, 2, state="old")
    for script in scripts:
        script.go_on.set()
    for reading in readings[1:]:
        assert stream_text(events(await reading)) == "Hello!"
    await service.frontend.until_metric(STREAMS, 0, state="old")


async def test_routers_replaced_one_after_the_other_under_load_fail_nothing(
    serve: Serve,
) -> None:
    async def script(reply: Reply) -> None:
        for number in range(20):
            reply.text(f"<{number}>")
            await reply.flush()
        reply.finish(completion_tokens=20)

    service = await serve(*[script] * 4)
    whole = "".join(f"<{number}>" for number in range(20))
    over = asyncio.Event()
    served = 0

    async def ask() -> None:
        nonlocal served
        while not over.is_set():
            response = await service.frontend.chat(stream=True)
            assert response.status_code == 200, response.text
            assert stream_text(events(response.text)) == whole
            served += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(ask())
        for router, after in zip(service.routers, service.routers[1:], strict=False):
            await router.until(lambda router: len(router.replies) > 30)
            service.lead_to(after)
            router.drain()
            await router.until(lambda router: not router.streams)
        await service.routers[-1].until(lambda router: len(router.replies) > 30)
        over.set()
    assert served >= 120
    assert await service.frontend.metric(RECONNECTS, cause="draining") == 3
    assert await service.frontend.metric(RECONNECTS, cause="lost") == 0


# --- while no router takes requests ---------------------------------------------------------------


async def lose_router(service: Service) -> None:
    service.switch.target = None
    service.switch.cut()
    await service.frontend.until("/ready", 503)


async def test_a_wait_for_a_router_is_bounded(serve: Serve) -> None:
    service = await serve(say_hello, router_wait_seconds=0.3)
    await lose_router(service)
    response = await service.frontend.chat()
    assert error_of(response) == (503, "router_lost", None)
    assert response.headers["retry-after"] == "1"
    assert await service.frontend.metric(WAITING) == 0


async def test_a_wait_for_a_router_ends_with_the_requests_own_deadline(serve: Serve) -> None:
    service = await serve(say_hello)
    await lose_router(service)
    response = await service.frontend.chat(timeout=0.2)
    assert error_of(response) == (504, "deadline_exceeded", None)


async def test_a_request_that_waited_counted_as_open_and_has_only_the_time_that_is_left(
    serve: Serve,
) -> None:
    service = await serve(say_hello, max_open_requests=1)
    await lose_router(service)
    waiting = asyncio.create_task(service.frontend.chat(timeout=60))
    await service.frontend.until_metric(WAITING, 1)
    assert error_of(await service.frontend.chat()) == (429, "queue_full", None)
    service.lead_to(service.routers[0])
    assert (await waiting).status_code == 200
    assert 50_000 < service.routers[0].last.submit.timeout_ms < 60_000


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(serve: Serve) -> None:
    service = await serve(say_hello)
    await lose_router(service)
    _, writer = await service.frontend.connect()
    writer.write(request_bytes(json.dumps(COMPLETION).encode(), path="/v1/completions"))
    await service.frontend.until_metric(WAITING, 1)
    writer.close()
    await service.frontend.until_metric(WAITING, 0)
    await service.frontend.until_metric("tandem_frontend_disconnects_total", 1)
    service.lead_to(service.routers[0])
    await service.frontend.until("/ready", 200)
    assert (await service.frontend.chat()).status_code == 200
    assert len(service.routers[0].replies) == 1


async def test_a_router_that_has_only_just_started_gets_requests_once_it_has_a_pair(
    serve: Serve, model_path: Path
) -> None:
    service = await serve(say_hello, say_hello)
    first, second = service.routers
    second.change_fleet(router_pb2.Fleet())
    service.lead_to(second)
    first.drain()
    await second.until(lambda router: bool(router.streams))
    asked = asyncio.create_task(service.frontend.chat())
    await service.frontend.until_metric(WAITING, 1)
    assert await service.frontend.metric(WAITING, missing="pair") == 1
    assert error_of(await service.frontend.until("/ready", 503)) == (503, "no_pair", None)
    second.change_fleet(fleet_of(model_path))
    assert (await asked).status_code == 200


@pytest.mark.promise("S5-220")
async def test_a_router_that_lets_requests_wait_for_a_pair_gets_them(
    serve: Serve, model_path: Path
) -> None:
    service = await serve(say_hello, say_hello)
    first, second = service.routers
    second.change_fleet(fleet_of(model_path, ready_pairs=0, waits=True))
    service.lead_to(second)
    first.drain()
    await second.until(lambda router: bool(router.streams))
    assert (await service.frontend.chat()).status_code == 200
    assert len(second.replies) == 1
    await service.frontend.until("/ready", 200)
    await first.until(lambda router: not router.streams)  # nothing was open there


async def test_a_request_that_comes_before_the_first_router_waits_for_it(
    start: Start, model_path: Path
) -> None:
    async with tcp_switch(None) as switch:
        frontend = await start(say_hello, router=(switch.address,), ready=False)
        late = await frontend.chat(timeout=0.2)
        assert error_of(late) == (503, "router_lost", None)
        asked = asyncio.create_task(frontend.chat())
        await frontend.until_metric(WAITING, 1)
        async with fake_router.running(say_hello, fleet_of(model_path)) as router:
            switch.target = port_of(router)
            assert (await asked).status_code == 200
