"""Two processes: KV over NIXL's real transports, the death of either side, and idleness."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tandem import config
from tandem_sim.faults import CRASH_STATUS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("engine_process.py")
PATIENCE = 60.0
PROMPT = list(range(100, 250))
_numbers = itertools.count(1)


class Child:
    """One engine's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.endpoint = ""

    async def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        assert line, "the process has ended"
        return json.loads(line)

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def ask(self, room: int, peer: str = "", **rest: Any) -> int:
        number = next(_numbers)
        request = {
            "request_id": number,
            "token_ids": PROMPT,
            "room": room,
            "kv_peer": peer,
            "timeout_seconds": rest.pop("timeout_seconds", 60),
        }
        self.send(ask=request, **rest)
        return number

    async def end(self) -> dict[str, Any]:
        """The next end, with all tokens up to it."""
        tokens: list[int] = []
        while True:
            delta = await self.read()
            tokens += delta["tokens"]
            if delta["end"] is not None:
                return {**delta, "tokens": tokens}

    async def load(self) -> dict[str, Any]:
        self.send(load=True)
        return await self.read()

    async def stop(self) -> None:
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()


Spawn = Callable[..., Awaitable[Child]]


@pytest.fixture(params=[{}, {"UCX_TLS": "tcp,self"}], ids=["any-transport", "tcp"])
async def spawn(request: Any, model_path: Path) -> AsyncIterator[Spawn]:
    children: list[Child] = []
    # UCX's own log would go between the lines of answers.
    variables = {"PYTHONPATH": str(ROOT), "UCX_LOG_FILE": "stderr", **request.param}

    async def spawn_one(role: str, **options: Any) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            str(model_path),
            role,
            json.dumps(options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=config.environment(variables),
        )
        child = Child(process)
        children.append(child)
        child.endpoint = (await child.read())["endpoint"]
        return child

    yield spawn_one
    for child in children:
        await child.stop()


async def test_kv_crosses_between_processes_and_idle_engines_rest(spawn: Spawn) -> None:
    prefill, decode = await asyncio.gather(spawn("prefill"), spawn("decode"))
    answers = set()
    for room in range(1, 31):
        prefill.ask(room)
        decode.ask(room, prefill.endpoint)
        ends = await prefill.end(), await decode.end()
        assert ends[1]["tokens"][:1] == ends[0]["tokens"]
        answers.add(tuple(ends[1]["tokens"]))
    assert len(answers) == 1
    before = [await child.load() for child in (prefill, decode)]
    assert all(load["used"] == load["rooms"] == load["legs"] == 0 for load in before)
    await asyncio.sleep(1.0)
    after = [await child.load() for child in (prefill, decode)]
    for early, late in zip(before, after, strict=True):
        assert late["cpu"] - early["cpu"] < 0.05


@pytest.mark.parametrize("at", ["prefill", "transfer"])
async def test_a_prefill_that_dies_fails_decodes_room_at_once(spawn: Spawn, at: str) -> None:
    prefill, other, decode = await asyncio.gather(
        spawn("prefill", fault_crash="nth:2", fault_crash_at=at), spawn("prefill"), spawn("decode")
    )
    prefill.ask(1)
    decode.ask(1, prefill.endpoint)
    good = await decode.end()
    decode.ask(2, prefill.endpoint)
    prefill.ask(2)
    end = await decode.end()
    if end["error"] is not None:  # shared memory may have brought the answer before the crash
        assert end["error"] == "kv_transfer_failed"
        assert end["retryable"]
    await prefill.end()
    await prefill.process.wait()
    assert prefill.process.returncode == CRASH_STATUS
    # Decode goes on with another prefill, although pages of the lost room are still leased.
    other.ask(3)
    decode.ask(3, other.endpoint)
    assert (await decode.end())["tokens"] == good["tokens"]


@pytest.mark.parametrize("at", ["transfer", "decode"])
async def test_a_decode_that_dies_leaves_prefill_serving_others(spawn: Spawn, at: str) -> None:
    prefill, decode, other = await asyncio.gather(
        spawn("prefill", handover_timeout_seconds=5),
        spawn("decode", fault_crash="nth:2", fault_crash_at=at),
        spawn("decode"),
    )
    prefill.ask(1)
    decode.ask(1, prefill.endpoint)
    good = await decode.end()
    await prefill.end()
    decode.ask(2, prefill.endpoint)
    if at == "transfer":
        await decode.process.wait()
        prefill.ask(2)
        assert (await prefill.end())["error"] == "kv_transfer_failed"
    else:
        prefill.ask(2)
        assert (await prefill.end())["error"] is None
        await decode.process.wait()
    assert decode.process.returncode == CRASH_STATUS
    prefill.ask(3)
    other.ask(3, prefill.endpoint)
    assert (await other.end())["tokens"] == good["tokens"]
    await prefill.end()
    load = await prefill.load()
    assert load["used"] == load["rooms"] == 0


async def test_a_stopped_prefill_does_not_hold_a_request_past_its_time(spawn: Spawn) -> None:
    prefill, decode = await asyncio.gather(spawn("prefill"), spawn("decode"))
    prefill.ask(1)
    decode.ask(1, prefill.endpoint)
    good = await decode.end()
    await prefill.end()
    prefill.process.send_signal(signal.SIGSTOP)
    try:
        decode.ask(2, prefill.endpoint, timeout_seconds=0.3)
        assert (await decode.end())["error"] == "deadline_exceeded"
        # The pages stay untouched: prefill might wake up and write.
        assert (await decode.load())["used"] > 0
    finally:
        prefill.process.send_signal(signal.SIGCONT)
    # It may still write, if it reads the offer before the abort: nobody uses those pages now.
    prefill.ask(2)
    assert (await prefill.end())["error"] in (None, "kv_transfer_failed")
    prefill.ask(3)
    decode.ask(3, prefill.endpoint)
    assert (await decode.end())["tokens"] == good["tokens"]
    assert (await decode.load())["used"] == 0
