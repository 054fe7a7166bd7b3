"""Workers that are there and do not do their work: a whole stack goes on without them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import PATIENCE, Served
from test_failures import ask, events, first_token, serving, until

STALL, FAILOVER = 3.0, 6.0
"""Seconds. A process that waits for its turn on a busy machine is not to look as if it stood."""


@pytest.fixture
def serve(model_path: Path, hook_log: Path, tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(fault: str, on: str, **changes: Any) -> AsyncIterator[Served]:
        flags = {
            "router": (
                f"--stall-seconds={STALL}",
                f"--stall-failover-seconds={FAILOVER}",
                "--eject-first-seconds=600",
                "--canary-seconds=0",  # else it is never proved, and nobody meets it
                "--prefill-policy=round_robin",  # the sick one gets its share, whatever its port is
                "--decode-policy=round_robin",
            ),
            on: (f"--engine-options=step_ms=5,{fault}",),
        }
        with serving(model_path, hook_log, tmp_path / "run", flags=flags, **changes) as served:
            workers = sum("worker" in name for name in served.stack.components)
            await until(
                lambda: of_router(served, "routable_workers") == workers,
                within=PATIENCE,
                what="requests may go to every worker",
            )
            yield served

    return start


def of_router(served: Served, name: str, **labels: str) -> float:
    return served.metric("router", f"tandem_router_{name}", **labels)


@pytest.mark.promise("S5-211")
async def test_a_prompt_that_waits_for_an_engine_that_stands_is_answered_by_another(
    serve: Callable[..., Any],
) -> None:
    async with serve("fault_stall=always", "prefill_worker-0", prefill=2) as served:
        began = time.monotonic()
        while not of_router(served, "worker_stalled"):
            answer = await ask(served)
            assert answer.status_code == 200, answer.text
        assert time.monotonic() - began < FAILOVER + PATIENCE
        assert of_router(served, "retries_total") == 1
        for _ in range(4):
            assert (await ask(served)).status_code == 200
        assert of_router(served, "retries_total") == 1, "nothing new went there"


@pytest.mark.promise("S5-211")
async def test_a_stream_of_an_engine_that_stands_ends_with_an_error_in_time(
    serve: Callable[..., Any],
) -> None:
    async with serve("fault_stall=always", "decode_worker-0", decode=2) as served:
        async with httpx.AsyncClient() as client:
            while True:  # until one runs there
                stream = events(client, served, max_tokens=8)
                await first_token(stream)
                began = time.monotonic()
                last = [event async for event in stream][-1]
                if "error" in last:
                    break
        assert last["error"]["code"] == "worker_lost"
        assert time.monotonic() - began < FAILOVER + PATIENCE
        await until(
            lambda: of_router(served, "worker_stalled") == 1,
            within=PATIENCE,
            what="it is seen again",
        )
        assert (await ask(served)).status_code == 200


@pytest.mark.promise("S5-208")
async def test_a_prefill_worker_whose_kv_comes_damaged_is_ejected_and_nobody_notices(
    serve: Callable[..., Any],
) -> None:
    async with serve("fault_corrupt=always", "prefill_worker-0", prefill=2, decode=2) as served:
        sick = served.stack.components["prefill_worker-0"].launch.address
        answers = [await ask(served) for _ in range(16)]
        assert {each.status_code for each in answers} == {200}
        assert of_router(served, "worker_ejected", worker=sick) == 1
        assert of_router(served, "retries_total") <= 6
