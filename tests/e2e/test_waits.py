"""What a request waits for, as the client of a whole stack reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import MODEL, PATIENCE, SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack

MESSAGES = [{"role": "user", "content": "The for statement"}]
REPORT = {"tandem": {"report": True}}


@pytest.fixture
def served(model_path: Path, hook_log: Path, tmp_path: Path) -> Iterator[Served]:
    """One slot in each phase, and answers of half a minute, where nobody leaves."""
    made = options(
        "sim",
        model_path,
        engine_options=("step_ms=20",),
        flags={
            "frontend": ("--allow-reports",),
            "router": ("--allow-reports",),
            "prefill_worker": ("--max-sequences=1",),
            "decode_worker": ("--max-sequences=1",),
        },
    )
    with Stack(made, run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


def body(tokens: int, **fields: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": tokens}
    return {**asked, "ignore_eos": True, **fields}


@pytest.mark.promise("S5-792", "S5-793")
async def test_a_client_that_asks_for_a_report_reads_what_its_answer_waits_for(
    served: Served,
) -> None:
    url = f"{served.url}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=PATIENCE) as client, asyncio.timeout(4 * PATIENCE):
        async with client.stream("POST", url, json=body(1500)) as running:
            lines = running.aiter_lines()
            while not (await anext(lines)).startswith("data:"):
                pass
            async with client.stream("POST", url, json=body(2, **REPORT)) as waiting:
                assert waiting.status_code == 200
                said = waiting.aiter_lines()
                first = await anext(said)
                assert first.startswith(": waiting: no slot is free on ")
                assert "no slot is free on decode, which has 1; no other waits" in first
                again = await anext(line async for line in said if line)
                assert again == first, "a second later it still waits"
                await running.aclose()
                rest = [line async for line in said if line]
        comments = [line for line in rest if line.startswith(":")]
        assert comments[-1] == ": waiting: prefill"
        assert rest.index(comments[-1]) == len(comments) - 1, "none comes behind an event"
        assert rest[-1] == "data: [DONE]"
        told = [json.loads(line.removeprefix("data: ")) for line in rest[len(comments) : -1]]
        (timeline,) = told[-1]["tandem"]["timeline"]
        assert timeline["queue_cause"] in first
        assert timeline["queue_seconds"] > 1
        plain = await client.post(url, json=body(2))
        assert ": waiting" not in plain.text
