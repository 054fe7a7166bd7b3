"""A sim engine in a process of its own, driven by JSON lines: the script behind test_sim_process.

    python engine_process.py MODEL_PATH ROLE OPTIONS

Prints {"endpoint"}; then reads {"ask": {...}} and {"load": true}, and prints deltas and loads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from tandem.engine.base import EngineRequest, EngineSettings, Role
from tandem.engine.mailbox import steps
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2
from tandem_sim import SimEngine


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


async def listen(engine: SimEngine) -> None:
    async for step in steps(engine):
        for delta in step:
            say(
                number=delta.request_id,
                tokens=list(delta.token_ids),
                end=delta.end.value if delta.end else None,
                error=delta.error.code if delta.error else None,
                retryable=delta.retryable,
            )


async def obey(engine: SimEngine) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        if "ask" in message:
            sampling = common_pb2.SamplingParams(**message.pop("sampling", {"max_tokens": 12}))
            engine.submit(EngineRequest(sampling=sampling, **message["ask"]))
        else:
            load = engine.load()
            say(
                cpu=time.process_time(),
                rooms=engine.open_rooms,
                used=load.kv_tokens_used,
                legs=load.open_legs,
            )


async def main() -> None:
    model_path, role, options = sys.argv[1:]
    engine = SimEngine(
        Role(role),
        EngineSettings(
            model_path=Path(model_path),
            model_name="tiny",
            max_sequences=256,
            host="127.0.0.1",
            options={"step_ms": 1, "max_total_tokens": 65536, **json.loads(options)},
            registry=Registry.builtin(),
        ),
    )
    say(endpoint=(await engine.start()).kv_endpoint)
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(engine))
        await obey(engine)
        await engine.close()


if __name__ == "__main__":
    uvloop.run(main())
