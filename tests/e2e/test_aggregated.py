"""Workers that serve both phases, as processes: alone, beside a pair, scaled to nothing and back,
killed. What clients see of one is what they see of a pair: the tests that `served` runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import (
    MODEL,
    SGLANG_READY_SECONDS,
    SIM_READY_SECONDS,
    WITHOUT_FORMS,
    Served,
    options,
)

from tandem.cli.stack import Stack

TRACE = "ab" * 16
SHORT = "The for statement"
LONG = [5 + number % 200 for number in range(3000)]
QUICK = ("step_ms=1", "prefill_base_ms=1", "prefill_ms_per_token=0.4")
SLOW = ("step_ms=1", "prefill_base_ms=300", "prefill_ms_per_token=0.1")
"""A pair's prefill: its hand-over on this machine is nearly none. What is short takes 0.3 s longer
there, and what is long takes 2 s longer beside somebody else in an aggregated worker: more than a
busy machine adds to either."""


@contextmanager
def serving(
    model_path: Path, hook_log: Path, run_dir: Path, *, engine: str = "sim", **changes: Any
) -> Iterator[Served]:
    ready = SIM_READY_SECONDS if engine == "sim" else SGLANG_READY_SECONDS
    wanted = {
        "prefill": 0,
        "decode": 0,
        "aggregated": 1,
        "hook_prefill": "",
        "hook_decode": "",
    } | changes
    with Stack(options(engine, model_path, **wanted), run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=ready)
        yield Served(engine, stack, hook_log)


@pytest.fixture
def serve(model_path: Path, hook_log: Path, tmp_path: Path) -> Callable[..., Any]:
    def start(**changes: Any) -> Any:
        return serving(model_path, hook_log, tmp_path / "run", **changes)

    return start


def body(prompt: str | list[int], **fields: Any) -> dict[str, Any]:
    given = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    return given | {"ignore_eos": True} | fields


def ask(
    served: Served, prompt: str | list[int], trace_id: str = TRACE, **fields: Any
) -> httpx.Response:
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    url = f"{served.url}/v1/completions"
    return httpx.post(url, json=body(prompt, **fields), headers=headers, timeout=60)


def ways(served: Served, **labels: str) -> float:
    return served.metric("router", "tandem_router_ways_total", **labels)


async def until(holds: Callable[[], bool], *, within: float = 20) -> None:
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - what is awaited is another process's
            await asyncio.sleep(0.05)


async def both_ways_stand(served: Served) -> None:
    name = "tandem_router_ready_pairs"
    await until(lambda: served.metric("router", name) == 2, within=120)


async def both_routable(served: Served) -> None:
    name = "tandem_router_routable_workers"
    await until(lambda: served.metric("router", name, phase="decode") == 2)


async def events(served: Served, **fields: Any) -> AsyncIterator[Any]:
    """Of a streamed completion."""
    async with (
        httpx.AsyncClient() as client,
        client.stream(
            "POST", f"{served.url}/v1/completions", json=body(SHORT, stream=True, **fields)
        ) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.promise("S5-331")
async def test_beside_a_pair_short_prompts_go_one_way_and_long_ones_the_other(
    serve: Callable[..., Any],
) -> None:
    flags = {"prefill_worker": (f"--engine-options={','.join(SLOW)}",)}
    with serve(prefill=1, decode=1, engine_options=QUICK, flags=flags) as served:
        await both_ways_stand(served)
        apart = {}
        for number in range(8):  # both ways are measured, with both lengths
            prompt = LONG if number % 2 else SHORT
            apart[number % 2] = ask(served, prompt).json()["choices"][0]["text"]
        before = {way: ways(served, way=way) for way in ("pair", "aggregated")}
        assert sum(before.values()) == 8
        with ThreadPoolExecutor(1) as pool:
            # Somebody is decoded by the aggregated worker: a long prompt would hold it up.
            busy = pool.submit(ask, served, SHORT, max_tokens=3000)
            while served.metric("aggregated_worker-0", "tandem_worker_open_legs") == 0:
                assert not busy.done(), "it went the other way"
            long = [ask(served, LONG).json()["choices"][0]["text"] for _ in range(3)]
            assert ways(served, way="pair") == before["pair"] + len(long)
            assert busy.result().status_code == 200
        assert set(long) == {apart[1]}, "the answer is the same whichever way it goes"
        admin = served.stack.components["router"].launch.metrics
        with urllib.request.urlopen(f"http://{admin}/debug/requests/{TRACE}") as answer:
            story = json.loads(answer.read())["requests"][0]["story"]
        way = next(
            each["way"] for each in story["sequences"][0]["moments"] if each["name"] != "queued"
        )
        assert way["reason"] == "earliest"
        assert way["pair_seconds"] > 0 < way["aggregated_seconds"]


@pytest.mark.promise("S5-330")
async def test_a_fleet_of_aggregated_workers_goes_to_nothing_and_comes_back(
    serve: Callable[..., Any],
) -> None:
    flags = {"router": (f"--expected-models={MODEL}", "--pair-wait-seconds=30")}
    with serve(flags=flags) as served:
        assert ask(served, SHORT).status_code == 200
        worker = served.stack.components["aggregated_worker-0"]
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.process.wait(timeout=20) == 0
        asked = asyncio.create_task(asyncio.to_thread(ask, served, SHORT))
        await asyncio.sleep(0.5)
        assert not asked.done(), "it waits for a worker"
        served.stack.restart("aggregated_worker-0")
        assert (await asked).status_code == 200


async def test_what_it_has_shown_ends_with_it_and_the_other_goes_on(
    serve: Callable[..., Any],
) -> None:
    with serve(aggregated=2, engine_options=("step_ms=20",)) as served:
        await both_routable(served)
        streams = [events(served, max_tokens=60) for _ in range(2)]
        for stream in streams:
            await asyncio.wait_for(anext(stream), 60)
        os.kill(served.stack.components["aggregated_worker-0"].pid, signal.SIGKILL)
        ends = [[event async for event in stream][-1] for stream in streams]
        codes = sorted(each.get("error", {}).get("code", "") for each in ends)
        assert codes == ["", "worker_lost"]
        assert ask(served, SHORT).status_code == 200


@pytest.mark.promise("S5-331")
async def test_a_prompt_has_the_same_answer_whichever_way_it_goes(
    serve: Callable[..., Any],
) -> None:
    with serve(prefill=1, decode=1) as served:
        await both_ways_stand(served)
        texts = {ask(served, SHORT, max_tokens=8).json()["choices"][0]["text"] for _ in range(2)}
        for way in ("pair", "aggregated"):  # neither was measured before
            assert ways(served, way=way, reason="measure") == 1
        assert len(texts) == 1


@pytest.mark.promise("S5-331")
@pytest.mark.sglang
@pytest.mark.long
def test_an_aggregated_sglang_answers_as_a_pair_does(
    serve: Callable[..., Any], sglang: Served
) -> None:
    """The pair is that of all tests: how a router chooses between the two ways is the same for any
    engine, and an executor's own SGLang answers as a pair does in test_executor_engines. Each
    computes the whole prompt: what others have cached was computed in other batches.
    """
    fields = {"max_tokens": 8, "cache_salt": "whichever way"}
    with serve(engine="sglang", engine_options=WITHOUT_FORMS) as served:
        apart = [ask(each, SHORT, **fields).json()["choices"][0] for each in (served, sglang)]
        assert ways(served, way="aggregated") == 1
        assert apart[0]["text"] == apart[1]["text"]
