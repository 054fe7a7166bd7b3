"""Silent streams of a whole stack: one that waits in the router's queue, and one of a slow engine,
are sent comments; one that the router refuses has its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import MODEL, SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack

PATIENCE = 30.0
COMMENT = ": keep-alive"
STEP_MS = 600
ASKED: dict[str, Any] = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def served(model_path: Path, hook_log: Path, tmp_path: Path) -> Iterator[Served]:
    """One sequence at a time, of an engine that takes its time, and one place to wait."""
    slots = dict.fromkeys(("prefill_worker", "decode_worker"), ("--max-sequences=1",))
    changes: dict[str, Any] = {
        "engine_options": (f"step_ms={STEP_MS}",),
        "flags": {
            "frontend": ("--sse-keep-alive-seconds=0.2",),
            "router": ("--max-queue=1",),
            **slots,
        },
    }
    with Stack(options("sim", model_path, **changes), run_dir=tmp_path / "run") as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.mark.promise("S6-320", "S6-321")
async def test_what_waits_and_what_is_slow_is_kept_alive_and_a_refusal_keeps_its_status(
    served: Served,
) -> None:
    async with (
        httpx.AsyncClient(base_url=f"{served.url}/v1", timeout=PATIENCE) as http,
        http.stream("POST", "/completions", json={**ASKED, "stream": True}) as slow,
    ):
        slow_lines = (line async for line in slow.aiter_lines() if line)
        async with http.stream("POST", "/completions", json={**ASKED, "stream": True}) as queued:
            assert queued.status_code == 200
            queued_lines = (line async for line in queued.aiter_lines() if line)
            assert await asyncio.wait_for(anext(queued_lines), PATIENCE) == COMMENT
            assert served.metric("router", "tandem_router_queue_length") == 1
            refused = await http.post("/completions", json={**ASKED, "stream": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            for lines in (slow_lines, queued_lines):
                rest = [line async for line in lines]
                assert rest[-1] == "data: [DONE]"
                shown = [number for number, line in enumerate(rest) if '"text":"' in line]
                assert COMMENT in rest[shown[0] : shown[-1]], "between tokens"
    assert served.metric("frontend", "tandem_frontend_completion_tokens_total") == 8
