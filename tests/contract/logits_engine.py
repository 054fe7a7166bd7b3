"""Run as a process of its own: one aggregated engine, all requests of its input at once, and those
that are to come "later" when the others have ended.

Reads {"engine", "model_path", "options", "requests": [{"token_ids", "processors", ...}]}, and what
"further" processors there are beside those of logits_probe.py, and writes
{"answers": [{"token_ids", "error"}], "cached": [n], "scores": [[[chosen], [top]] or null],
"states": n, "peak": n}, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import logits_probe

from tandem.engine import factory
from tandem.engine.base import Engine, EngineRequest, EngineSettings, Role
from tandem.engine.mailbox import steps
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.usercode.deadline import WATCH
from tandem.v1 import common_pb2

SETTLE_SECONDS = 20.0


def request(number: int, asked: dict[str, Any]) -> EngineRequest:
    entries = tuple(LogitsProcessorEntry(name, args) for name, args in asked["processors"])
    return EngineRequest(
        request_id=number,
        token_ids=asked["token_ids"],
        sampling=common_pb2.SamplingParams(
            max_tokens=asked["max_tokens"],
            top_p=1,
            top_k=-1,
            **{"repetition_penalty": 1, **asked.get("sampling", {})},
        ),
        logits=LogitsProcessorSpec(entries) if entries else None,
        cache_salt=asked.get("cache_salt", ""),
    )


async def run(engine: Engine, asked: list[dict[str, Any]]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = [{"token_ids": [], "error": None} for _ in asked]
    cached = [0] * len(asked)
    scores: list[Any] = [None] * len(asked)
    later = [number for number, each in enumerate(asked) if each.get("later")]
    open_requests = set(range(len(asked))) - set(later)
    for number in open_requests:
        engine.submit(request(number, asked[number]))
    peak = 0
    async for step in steps(engine):
        peak = max(peak, engine.figures().logits_states)
        for delta in step:
            answer = answers[delta.request_id]
            answer["token_ids"] += delta.token_ids
            cached[delta.request_id] = max(cached[delta.request_id], delta.cached_tokens)
            if (prompt := delta.prompt_logprobs) is not None:
                assert scores[delta.request_id] is None, "the prompt's came twice"
                scores[delta.request_id] = [prompt.logprobs.chosen, prompt.logprobs.top]
            if delta.error is not None:
                answer["error"] = [delta.error.code, delta.error.message]
            if delta.end is not None:
                open_requests.discard(delta.request_id)
            elif len(answer["token_ids"]) >= asked[delta.request_id].get("cancel_after", 10**9):
                engine.cancel(delta.request_id)
        if not open_requests:
            if not later:
                break
            for number in later:
                engine.submit(request(number, asked[number]))
            open_requests, later = set(later), []
    states = await settled(engine)
    return {
        "answers": answers,
        "cached": cached,
        "scores": scores,
        "peak": peak,
        "states": states,
    }


async def settled(engine: Any) -> int:
    """Sequences that still have processors when nothing is open, after a moment for the engine."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SETTLE_SECONDS
    while engine.figures().logits_states and loop.time() < until:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)
    states: int = engine.figures().logits_states
    return states


async def main() -> None:
    given = json.load(sys.stdin)
    WATCH.install()  # as a worker does
    engine = factory.create(
        given["engine"],
        Role.AGGREGATED,
        EngineSettings(
            model_path=Path(given["model_path"]),
            model_name="tandem-tiny",
            max_sequences=given.get("max_sequences", 64),
            host="127.0.0.1",
            options=given["options"],
            registry=Registry.from_settings(
                parse({**logits_probe.SETTINGS, **given.get("further", {})})
            ),
        ),
    )
    try:
        await engine.start()
        result = await run(engine, given["requests"])
    finally:
        await engine.close()
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
