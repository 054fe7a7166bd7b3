"""KV events of a whole stack: a subscriber holds what the prefill worker's cache holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from kv_event_subscriber import Subscriber
from stacks import SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack
from tandem.prefix_blocks import BLOCK_TOKENS, packed, unpacked

BLOCKS = 8
"""Of the worker's cache."""
MINE = [n % 90 + 10 for n in range(6 * BLOCK_TOKENS + 10)]
OTHER = [n % 80 + 110 for n in range(4 * BLOCK_TOKENS)]


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    names = ("endpoint", "replay_endpoint")
    return {name: f"ipc://{tmp_path / name}" for name in names}


@pytest.fixture
def served(
    model_path: Path, hook_log: Path, tmp_path: Path, where: dict[str, str]
) -> Iterator[Served]:
    made = options(
        "sim",
        model_path,
        engine_options=(f"prefix_cache_tokens={BLOCKS * BLOCK_TOKENS}",),
        flags={"prefill_worker": (f"--kv-events={json.dumps(where)}",)},
    )
    with Stack(made, run_dir=tmp_path / "run") as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.mark.promise("S5-787", "S5-788")
async def test_a_subscriber_holds_what_the_worker_s_cache_holds(
    served: Served, where: dict[str, str]
) -> None:
    mine, other = set(unpacked(packed(MINE))), set(unpacked(packed(OTHER)))
    async with Subscriber(**where) as subscriber:
        await complete(served, MINE)
        await asked_again_until(subscriber, mine)
        assert {tokens for _, tokens in subscriber.held.values()} == {
            tuple(MINE[n * BLOCK_TOKENS :][:BLOCK_TOKENS]) for n in range(6)
        }
        await complete(served, OTHER)  # two blocks of the first prompt have to go
        kept = set(list(unpacked(packed(MINE)))[: BLOCKS - len(other)])
        await subscriber.read_until(kept | other)
        (topic,) = subscriber.topics
        assert topic == b"kv@prefill_worker-0@tandem-tiny"
    await complete(served, MINE)  # while nobody is subscribed
    late = Subscriber(**where)
    await asked_again_until(late, mine | set(list(unpacked(packed(OTHER)))[: BLOCKS - len(mine)]))


async def complete(served: Served, prompt: list[int]) -> None:
    body = {"model": "tandem-tiny", "prompt": prompt, "max_tokens": 2}
    async with httpx.AsyncClient(timeout=60) as client:
        (await client.post(f"{served.url}/v1/completions", json=body)).raise_for_status()


async def asked_again_until(subscriber: Subscriber, blocks: set[int]) -> None:
    """The answer's end and the event of its prompt come in no order."""
    async with asyncio.timeout(30):
        while set(subscriber.held) != blocks:
            await subscriber.ask_again()
            await asyncio.sleep(0.05)
