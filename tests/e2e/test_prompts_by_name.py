"""Sessions whose prompts travel by name, while routers and workers are killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from stacks import SIM_READY_SECONDS, options

from tandem.cli.stack import Stack
from tandem.wire.prompt_chunks import CHUNK_TOKENS

SESSIONS = 4
TURNS = 6
KILLED = {2: "decode_worker-0", 3: "prefill_worker-1", 4: "router"}
"""What is killed before which turn."""


@pytest.fixture
def stack(model_path: Path, hook_log: Path, tmp_path: Path) -> Iterator[Stack]:
    made = options(
        "sim",
        model_path,
        prefill=2,
        decode=2,
        engine_options=("context_length=65536", "prefix_cache_tokens=100000"),
    )
    with Stack(made, run_dir=tmp_path / "stack") as started:
        started.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield started


def prompt(session: int, turn: int) -> list[int]:
    """Of about three chunks, and 300 tokens more with each turn."""
    tokens = 3 * CHUNK_TOKENS + 300 * turn
    return [10 + (session * 7 + place * (session + 3)) % 200 for place in range(tokens)]


async def answers(stack: Stack, turn: int) -> list[str]:
    """What each session is told."""
    async with httpx.AsyncClient(timeout=60) as client:

        async def ask(session: int) -> str:
            body = {"model": "tandem-tiny", "prompt": prompt(session, turn), "max_tokens": 8}
            said = await client.post(f"{stack.url}/v1/completions", json=body)
            said.raise_for_status()
            return str(said.json()["choices"][0]["text"])

        return await asyncio.gather(*map(ask, range(SESSIONS)))


def known_tokens(stack: Stack, component: str) -> float:
    address = stack.components[component].launch.metrics
    lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    (line,) = [line for line in lines if "_known_prompt_tokens_total" in line and line[0] != "#"]
    return float(line.split()[-1])


@pytest.mark.promise("S5-649")
async def test_sessions_go_on_where_a_worker_or_the_router_is_killed(
    stack: Stack, model_path: Path, tmp_path: Path
) -> None:
    said = []
    for turn in range(TURNS):
        killed = KILLED.get(turn)
        if killed:
            os.kill(stack.components[killed].pid, signal.SIGKILL)
        asking = asyncio.create_task(answers(stack, turn))
        if killed:
            stack.components[killed].process.wait(timeout=10)
            await asyncio.sleep(0)
            stack.restart(killed)
        said.append(await asking)
    for component in ("router", "prefill_worker-0", "decode_worker-1"):
        assert known_tokens(stack, component) >= CHUNK_TOKENS
    assert len({text for texts in said for text in texts}) == TURNS * SESSIONS
    whole = options("sim", model_path, engine_options=("context_length=65536",))
    with Stack(whole, run_dir=tmp_path / "whole") as other:
        other.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        assert said == [await answers(other, turn) for turn in range(TURNS)]
