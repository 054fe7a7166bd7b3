"""A program: one SGLang engine computes prompts, and what its log of prefixes says is printed.

python prefix_events.py MODEL_PATH
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path

from tandem.engine.base import EngineRequest, EngineSettings, Role
from tandem.engine.mailbox import steps
from tandem.engine.prefix_log import PrefixLog
from tandem.logits.registry import Registry
from tandem.prefix_blocks import packed, unpacked
from tandem.v1 import common_pb2
from tandem_sglang.engine import SglangEngine

PROMPT = [number % 90 + 10 for number in range(700)]
PATIENCE = 60.0


def held(log: PrefixLog, salt: str = "") -> int:
    """How many of the prompt's blocks are in the cache."""
    return sum(each in log.held for each in unpacked(packed(PROMPT, salt)))


async def ask(engine: SglangEngine, number: int, prompt: list[int], salt: str = "") -> None:
    """Have a prompt computed."""
    sampling = common_pb2.SamplingParams(
        max_tokens=1, top_p=1, top_k=-1, repetition_penalty=1, ignore_eos=True
    )
    engine.submit(
        EngineRequest(request_id=number, token_ids=prompt, sampling=sampling, cache_salt=salt)
    )
    async with aclosing(steps(engine)) as coming:
        async for step in coming:
            if any(delta.request_id == number and delta.end for delta in step):
                return


async def until(log: PrefixLog, expected: tuple[int, int]) -> tuple[int, int]:
    """Wait for what SGLang publishes; returns what is known then, with and without a salt."""
    for _ in range(round(PATIENCE / 0.1)):
        if (held(log), held(log, "acme")) == expected:
            break
        await asyncio.sleep(0.1)
    return held(log), held(log, "acme")


async def main(model_path: Path) -> None:
    settings = EngineSettings(
        model_path=model_path,
        model_name="tiny",
        max_sequences=8,
        host="127.0.0.1",
        options={"max_total_tokens": 2048},
        registry=Registry.builtin(),
    )
    engine = SglangEngine(Role.AGGREGATED, settings)
    description = await engine.start()
    log = description.prefixes
    assert log is not None
    try:
        await ask(engine, 1, PROMPT)
        told = [await until(log, (10, 0))]
        await ask(engine, 2, PROMPT, "acme")
        told.append(await until(log, (10, 10)))
        for number in range(3, 7):
            await ask(engine, number, [place * number % 90 + 100 for place in range(700)])
        told.append(await until(log, (0, 0)))
    finally:
        await engine.close()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
