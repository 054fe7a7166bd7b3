"""What clients see when parts of real SGLang die under them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from stacks import MODEL, SGLANG_READY_SECONDS, WITHOUT_FORMS, Served, options

from tandem.cli.stack import Stack

zmq = pytest.importorskip("zmq", reason="SGLang brings it")
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(SGLANG_READY_SECONDS + 120)]
FOUND_WITHIN = 40.0
"""Seconds within which a dead scheduler must have become an error: its prefill needs six."""
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "The for statement is used to", **fields}


async def _events(client: httpx.AsyncClient, url: str) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", f"{url}/v1/completions", json=_body(**LONG)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _scheduler(served: Served, name: str) -> psutil.Process:
    """SGLang's scheduler is a child of the worker that names itself."""
    worker = psutil.Process(served.stack.components[name].pid)
    (found,) = (each for each in worker.children() if "sglang::scheduler" in each.cmdline()[0])
    return found


def _send_stray_frame(scheduler: psutil.Process) -> None:
    """To each of its ports: by what it cannot read, SGLang's KV thread alone would end."""
    with zmq.Context() as context:
        for connection in scheduler.net_connections("tcp4"):
            if connection.status == psutil.CONN_LISTEN:
                with context.socket(zmq.PUSH) as stranger:
                    stranger.linger = 1000
                    stranger.connect(f"tcp://127.0.0.1:{connection.laddr.port}")
                    stranger.send_multipart([b"stray"])


@pytest.mark.promise("S5-461")
async def test_stray_frames_cost_nobody_and_a_scheduler_that_dies_is_a_typed_error_in_bounded_time(
    model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    flags = {"router": ("--pair-memory-seconds=0",)}  # what is refused is not to wait first
    plain = options(
        "sglang",
        model_path,
        engine_options=WITHOUT_FORMS,
        hook_prefill="",
        hook_decode="",
        flags=flags,
    )
    with Stack(plain, run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SGLANG_READY_SECONDS)
        served = Served("sglang", stack, hook_log)
        async with httpx.AsyncClient(timeout=60) as client:
            stream = _events(client, served.url)
            assert "choices" in await anext(stream)

            for name in ("prefill_worker-0", "decode_worker-0"):
                _send_stray_frame(_scheduler(served, name))
            answered = await client.post(f"{served.url}/v1/completions", json=_body(max_tokens=4))
            assert answered.status_code == 200, answered.text
            assert "choices" in await anext(stream)

            _scheduler(served, "prefill_worker-0").kill()
            began = time.monotonic()
            refused = await client.post(f"{served.url}/v1/completions", json=_body(max_tokens=4))
            assert refused.status_code in (502, 503)
            codes = ("worker_lost", "engine_error", "kv_transfer_failed", "no_pair")
            assert refused.json()["error"]["code"] in codes
            assert time.monotonic() - began < FOUND_WITHIN
            # What decode already has does not need prefill any more.
            assert "choices" in await anext(stream)

            _scheduler(served, "decode_worker-0").kill()
            async with asyncio.timeout(FOUND_WITHIN):
                last = [event async for event in stream][-1]
            assert last["error"]["code"] in ("worker_lost", "engine_error")
            refused = await client.post(f"{served.url}/v1/completions", json=_body(max_tokens=4))
            assert refused.json()["error"]["code"] == "no_pair"
            for name in ("prefill_worker-0", "decode_worker-0"):
                ended = stack.components[name].process
                assert await asyncio.to_thread(ended.wait, 30) == 1
