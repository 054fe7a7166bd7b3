"""A program: one SGLang engine computes prompts, and what its log of prefixes says is printed, with
whether a subscriber to KV events holds the same.

python prefix_events.py MODEL_PATH
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path

from kv_event_subscriber import Subscriber

from tandem.engine.base import EngineRequest, EngineSettings, Role
from tandem.engine.mailbox import steps
from tandem.engine.prefix_log import PrefixLog
from tandem.logits.registry import Registry
from tandem.prefix_blocks import packed, unpacked
from tandem.v1 import common_pb2
from tandem.worker.kv_events import KvEvents, KvEventsSettings
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


async def subscribed(subscriber: Subscriber, log: PrefixLog) -> bool:
    """Whether the subscriber's state, with all that it missed, becomes the log's."""
    beginnings = {unpacked(packed(PROMPT[:64], salt))[0] for salt in ("", "acme")}
    for _ in range(round(PATIENCE / 0.1)):
        await subscriber.ask_again()
        held = subscriber.held
        if set(held) == set(log.held):
            mine = {each for each, (_, tokens) in held.items() if list(tokens) == PROMPT[:64]}
            return mine == beginnings & set(held)
        await asyncio.sleep(0.1)
    return False


async def main(model_path: Path, folder: str) -> None:
    settings = EngineSettings(
        model_path=model_path,
        model_name="tiny",
        max_sequences=8,
        host="127.0.0.1",
        options={"max_total_tokens": 2048},
        registry=Registry.builtin(),
    )
    where = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    events = KvEvents(KvEventsSettings(**where), topic="kv@one@tiny")
    events.open()
    engine = SglangEngine(Role.AGGREGATED, settings)
    description = await engine.start()
    log = description.prefixes
    assert log is not None
    events.follow(log)
    subscriber = Subscriber(**where)
    try:
        await ask(engine, 1, PROMPT)
        told = [(*await until(log, (10, 0)), await subscribed(subscriber, log))]
        await ask(engine, 2, PROMPT, "acme")
        told.append((*await until(log, (10, 10)), await subscribed(subscriber, log)))
        for number in range(3, 7):
            await ask(engine, number, [place * number % 90 + 100 for place in range(700)])
        told.append((*await until(log, (0, 0)), await subscribed(subscriber, log)))
    finally:
        await engine.close()
        await events.close()
    print(json.dumps(told))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(sys.argv[1]), folder))
