"""What clients see when parts fail, and what is left afterwards: a typed error in bounded time, and
nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import switch_hook
from stacks import MODEL, PATIENCE, SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack

BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    "max_tokens": 2000,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}
FOUND_WITHIN = 30.0
"""Seconds within which a lost process must have become an error."""
WITHOUT_CANARIES = {"router": ("--canary-seconds=0",)}
"""For workers that would not be proved by one."""
WORKERS = ("prefill_worker-0", "decode_worker-0")


@contextmanager
def serving(
    model_path: Path, hook_log: Path, run_dir: Path, *, ready: bool = True, **changes: Any
) -> Iterator[Served]:
    """A stack of its own, for tests that break it; without hooks unless they are asked for."""
    plain = {"hook_prefill": "", "hook_decode": ""} | changes
    with Stack(options("sim", model_path, **plain), run_dir=run_dir) as stack:
        if ready:
            stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.fixture
def serve(model_path: Path, hook_log: Path, tmp_path: Path) -> Callable[..., Any]:
    def start(**changes: Any) -> Any:
        return serving(model_path, hook_log, tmp_path / "run", **changes)

    return start


async def events(client: httpx.AsyncClient, served: Served, **fields: Any) -> AsyncIterator[Any]:
    """Events of a streamed completion; the body of a refusal is one event with its status."""
    url = f"{served.url}/v1/completions"
    async with client.stream("POST", url, json=BODY | fields, timeout=60) as response:
        if response.status_code != 200:
            yield {**json.loads(await response.aread()), "status": response.status_code}
            return
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


async def ask(served: Served, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        body = BODY | {"stream": False, "max_tokens": 4} | fields
        return await client.post(f"{served.url}/v1/completions", json=body)


async def until(holds: Callable[[], bool], *, within: float, what: str) -> None:
    """Wait for what another process does; its metrics are the only sign of it."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.05)


def nothing_is_open(served: Served) -> bool:
    names = [name for name in served.stack.components if "worker" in name]
    return (
        all(served.metric(name, "tandem_worker_open_legs") == 0 for name in names)
        and served.metric("router", "tandem_router_open_sequences") == 0
        and served.metric("frontend", "tandem_frontend_open_requests") == 0
    )


def kill(served: Served, name: str) -> None:
    os.kill(served.stack.components[name].pid, signal.SIGKILL)


async def first_token(stream: AsyncIterator[Any]) -> None:
    event = await asyncio.wait_for(anext(stream), 2 * PATIENCE)
    assert "choices" in event, event


@pytest.mark.parametrize("victim", WORKERS)
async def test_a_worker_killed_mid_stream_is_an_error_event_and_its_return_heals(
    serve: Callable[..., Any], victim: str
) -> None:
    with serve(engine_options=("step_ms=20",)) as served:
        async with httpx.AsyncClient() as client:
            stream = events(client, served, max_tokens=200)
            await first_token(stream)
            kill(served, victim)
            began = time.monotonic()
            seen = [event async for event in stream]
        if victim.startswith("decode"):
            assert seen[-1]["error"]["code"] in ("worker_lost", "engine_error")
            assert time.monotonic() - began < FOUND_WITHIN
        else:  # prefill had done its part
            assert seen[-1]["choices"][0]["finish_reason"] == "length"
        served.stack.components[victim].process.wait(timeout=10)
        asked = asyncio.create_task(ask(served))
        await asyncio.sleep(0.2)
        assert not asked.done(), "it waits for the worker to come back"
        served.stack.restart(victim)
        assert (await asked).status_code == 200
        await until(lambda: nothing_is_open(served), within=PATIENCE, what="all closed")


async def both_prefills_routable(served: Served) -> None:
    def routable() -> bool:
        name = "tandem_router_routable_workers"
        return served.metric("router", name, phase="prefill") == 2

    await until(routable, within=PATIENCE, what="the router uses both prefill workers")


@pytest.mark.parametrize("together", [1, 2])
async def test_a_prefill_worker_killed_before_anything_was_shown_is_not_noticed(
    serve: Callable[..., Any], together: int
) -> None:
    """But by one that was alone there: it may be what killed it."""
    with serve(prefill=2, engine_options=("prefill_base_ms=1500",)) as served:
        await both_prefills_routable(served)
        asked = [asyncio.ensure_future(ask(served)) for _ in range(2 * together)]
        busy: list[str] = []

        def found() -> bool:
            busy[:] = [
                name
                for name in ("prefill_worker-0", "prefill_worker-1")
                if served.metric(name, "tandem_worker_open_legs") == together
            ]
            return len(busy) == 2

        await until(found, within=PATIENCE, what="prefill runs")
        kill(served, busy[0])
        answers = [await each for each in asked]
        failed = [each.json()["error"]["code"] for each in answers if each.status_code != 200]
        retries = served.metric("router", "tandem_router_retries_total")
        if together == 1:
            assert failed == ["worker_lost"], failed
        else:
            assert (failed, retries) == ([], 2)


@pytest.mark.promise("S6-333")
@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_prompt_that_two_prefills_say_are_shown_once(
    serve: Callable[..., Any], stream: bool
) -> None:
    """Two at a time, so that neither prefill worker is left out."""
    sick = {"prefill_worker-0": ("--engine-options=fault_corrupt=always",)}
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "stream": stream}
    with serve(prefill=2, flags=WITHOUT_CANARIES | sick) as served:

        async def told(client: httpx.AsyncClient) -> list[float | None]:
            if stream:
                shown = [each async for each in events(client, served, **fields)]
            else:
                shown = [(await ask(served, **fields)).json()]
            assert not [each for each in shown if "error" in each], shown
            parts = [each["choices"][0]["logprobs"] for each in shown]
            return [one for part in parts if part for one in part["token_logprobs"]]

        await both_prefills_routable(served)
        found: list[list[float | None]] = []
        async with httpx.AsyncClient() as client:
            while served.metric("router", "tandem_router_retries_total") == 0:
                found += await asyncio.gather(told(client), told(client))
                assert len(found) < 50
        assert found[0][0] is None
        assert found[0].count(None) == 1
        assert all(each == found[0] for each in found)


@pytest.mark.parametrize("victim", WORKERS)
async def test_a_worker_killed_during_prefill_with_no_other_is_a_typed_error(
    serve: Callable[..., Any], victim: str
) -> None:
    with serve(engine_options=("prefill_base_ms=3000",)) as served:
        asked = asyncio.ensure_future(ask(served))
        await until(
            lambda: served.metric(victim, "tandem_worker_open_legs") == 1,
            within=PATIENCE,
            what="the leg is open",
        )
        kill(served, victim)
        began = time.monotonic()
        answer = await asked
        assert answer.status_code in (502, 503)
        # Decode may notice before the router does that its prefill worker has gone.
        assert answer.json()["error"]["code"] in ("worker_lost", "no_pair", "kv_transfer_failed")
        assert time.monotonic() - began < FOUND_WITHIN


@pytest.mark.promise("S6-149")
@pytest.mark.parametrize(
    ("phase", "engine_options"),
    [
        ("prefill", ("prefill_base_ms=5000",)),
        ("transfer", ("fault_delay=always", "fault_delay_ms=5000")),
        ("decode", ("step_ms=20",)),
    ],
)
async def test_a_client_that_goes_away_leaves_nothing_behind(
    serve: Callable[..., Any], phase: str, engine_options: tuple[str, ...]
) -> None:
    with serve(engine_options=engine_options, flags=WITHOUT_CANARIES) as served:
        reader, writer = await asyncio.open_connection(*served.url[7:].split(":"))
        body = json.dumps(BODY).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await until(
            lambda: served.metric("decode_worker-0", "tandem_worker_open_legs") == 1,
            within=PATIENCE,
            what="decode is told",
        )
        if phase == "decode":
            await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE)
        writer.close()
        await until(
            lambda: nothing_is_open(served), within=PATIENCE, what="both legs are cancelled"
        )


async def test_a_client_that_goes_away_while_queued_is_forgotten(
    serve: Callable[..., Any],
) -> None:
    workers = {"prefill_worker": ("--max-sequences=1",), "decode_worker": ("--max-sequences=1",)}
    with serve(engine_options=("step_ms=20",), flags=workers) as served:
        async with httpx.AsyncClient() as client:
            running = events(client, served)
            await first_token(running)
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{served.url}/v1/completions", json=BODY, timeout=1)
            await until(
                lambda: served.metric("router", "tandem_router_queue_length") == 0,
                within=PATIENCE,
                what="the queue is empty",
            )
            await first_token(running)


async def test_a_deadline_ends_a_request_in_every_phase(serve: Callable[..., Any]) -> None:
    with serve(engine_options=("step_ms=50", "prefill_ms_per_token=100")) as served:
        early = await ask(served, timeout=0.3)  # still in prefill
        assert (early.status_code, early.json()["error"]["code"]) == (504, "deadline_exceeded")
        async with httpx.AsyncClient() as client:
            late = [event async for event in events(client, served, prompt="x", timeout=1.5)]
        assert late[-1]["error"]["code"] == "deadline_exceeded"
        await until(lambda: nothing_is_open(served), within=PATIENCE, what="all closed")


@pytest.mark.parametrize("victim", [*WORKERS, "frontend"])
async def test_a_component_asked_to_stop_finishes_what_it_has(
    serve: Callable[..., Any], victim: str
) -> None:
    with serve(engine_options=("step_ms=10",)) as served:
        async with httpx.AsyncClient() as client:
            stream = events(client, served, max_tokens=150)
            await first_token(stream)
            component = served.stack.components[victim]
            component.process.send_signal(signal.SIGTERM)
            seen = [event async for event in stream]
        assert seen[-1]["choices"][0]["finish_reason"] == "length"
        assert component.process.wait(timeout=15) == 0


@pytest.mark.parametrize(
    "fault",
    [
        ("fault_corrupt=always",),
        ("fault_drop=always", "handover_timeout_seconds=1"),
    ],
)
async def test_kv_that_does_not_arrive_whole_is_noticed(
    serve: Callable[..., Any], fault: tuple[str, ...]
) -> None:
    with serve(engine_options=fault, flags=WITHOUT_CANARIES) as served:
        answer = await ask(served)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] in ("kv_corrupt", "kv_transfer_failed")
        await until(lambda: nothing_is_open(served), within=PATIENCE, what="all closed")


@pytest.mark.promise("S0-035")
async def test_terminate_in_prefill_ends_the_request_where_that_is_configured(
    serve: Callable[..., Any],
) -> None:
    flags = {"prefill_worker": ("--propagate-terminate",)}
    with serve(hook_prefill="switch_hook.SwitchHook", flags=flags) as served:
        trace_id = switch_hook.trace(switch_hook.TERMINATE_FIRST, "prefill")
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(
                f"{served.url}/v1/completions",
                json=BODY | {"stream": False, "n": 2},
                headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"},
            )
        for choice in answer.json()["choices"]:
            ended = (choice["text"], choice["finish_reason"], choice["stop_reason"])
            assert ended == ("", "stop", switch_hook.REASON)
        await until(lambda: nothing_is_open(served), within=PATIENCE, what="all closed")


@pytest.mark.promise("S1-045", "S1-051")
async def test_the_test_switch_makes_every_answer_hello_world(serve: Callable[..., Any]) -> None:
    with serve(test_logits_processor=True) as served:
        answer = await ask(served, max_tokens=64, n=3, ignore_eos=False, temperature=1.0)
        assert [each["text"] for each in answer.json()["choices"]] == ["Hello world!"] * 3
