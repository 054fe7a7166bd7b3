"""A fleet of nothing: its router has never had a worker, and requests wait for the first pair."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest
from stacks import MODEL, PATIENCE, Served
from test_failures import BODY, WORKERS, nothing_is_open, serving, until

WAIT = 60
FLAGS = {"router": (f"--expected-models={MODEL}", f"--pair-wait-seconds={WAIT}")}


@pytest.mark.promise("S5-223")
async def test_requests_that_come_before_any_worker_are_answered_by_the_first(
    model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    with serving(model_path, hook_log, tmp_path / "run", flags=FLAGS) as served:
        alone = await _ask(served)
        for name in (*WORKERS, "router"):
            component = served.stack.components[name]
            os.kill(component.pid, signal.SIGKILL)
            component.process.wait()
        served.stack.restart("router")
        await until(lambda: _ready(served) == 200, within=WAIT, what="a frontend that may queue")
        asked = [asyncio.create_task(_ask(served)) for _ in range(20)]
        waiting = "tandem_frontend_waiting_requests"
        await until(
            lambda: served.metric("frontend", waiting) == len(asked),
            within=WAIT,
            what="requests that wait",
        )
        await asyncio.sleep(1)
        assert not any(each.done() for each in asked)
        for name in WORKERS:
            served.stack.restart(name)
        assert set(await asyncio.gather(*asked)) == {alone}
        await until(lambda: nothing_is_open(served), within=PATIENCE, what="nothing open")


async def _ask(served: Served) -> str:
    body = {**BODY, "stream": False, "max_tokens": 20}
    async with httpx.AsyncClient(timeout=2 * WAIT) as client:
        response = await client.post(f"{served.url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def _ready(served: Served) -> int:
    url = f"http://{served.stack.components['frontend'].launch.metrics}/ready"
    return httpx.get(url, timeout=5).status_code
