"""What clients see when parts of real SGLang die under them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import MODEL, SGLANG_READY_SECONDS, Served, options

from tandem.cli.stack import Stack

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(SGLANG_READY_SECONDS + 120)]
FOUND_WITHIN = 20.0
"""Seconds within which a dead scheduler must have become an error: its prefill needs six."""
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "The for statement is used to", **fields}


async def _events(client: httpx.AsyncClient, url: str) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", f"{url}/v1/completions", json=_body(**LONG)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _kill_scheduler(served: Served, name: str) -> None:
    """SGLang's scheduler is a process of the worker's session that names itself."""
    session = served.stack.components[name].pid
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                title = (entry / "cmdline").read_bytes()
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if b"sglang::scheduler" in title and int(fields[3]) == session:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError(f"{name} has no scheduler")


async def test_a_dead_scheduler_is_a_typed_error_in_bounded_time(
    model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    plain = options("sglang", model_path, hook_prefill="", hook_decode="")
    with Stack(plain, run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SGLANG_READY_SECONDS)
        served = Served("sglang", stack, hook_log)
        async with httpx.AsyncClient(timeout=60) as client:
            stream = _events(client, served.url)
            assert "choices" in await anext(stream)

            _kill_scheduler(served, "prefill_worker-0")
            began = time.monotonic()
            refused = await client.post(f"{served.url}/v1/completions", json=_body(max_tokens=4))
            assert refused.status_code in (502, 503)
            codes = ("worker_lost", "engine_error", "kv_transfer_failed", "no_pair")
            assert refused.json()["error"]["code"] in codes
            assert time.monotonic() - began < FOUND_WITHIN
            # What decode already has does not need prefill any more.
            assert "choices" in await anext(stream)

            _kill_scheduler(served, "decode_worker-0")
            async with asyncio.timeout(FOUND_WITHIN):
                last = [event async for event in stream][-1]
            assert last["error"]["code"] in ("worker_lost", "engine_error")
            refused = await client.post(f"{served.url}/v1/completions", json=_body(max_tokens=4))
            assert refused.json()["error"]["code"] == "no_pair"
            for name in ("prefill_worker-0", "decode_worker-0"):
                ended = stack.components[name].process
                assert await asyncio.to_thread(ended.wait, 30) == 1
