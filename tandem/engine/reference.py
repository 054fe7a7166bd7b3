"""The reference run: one aggregated engine, greedily, one request after another.

    python -m tandem.engine.reference --engine sglang --model-path DIR < requests.json

It takes the engine options of the workers that it is compared with (`--engine-options`): beside
them on one GPU it must not take all of its memory.

Reads a JSON list of {"token_ids": [...], "max_tokens": n} and writes a JSON list of the generated
token ids. What a pair of workers generates must equal it.
"""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.run("tandem.engine.reference"))

import argparse
import json
import sys
import typing
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
import uvloop

from tandem.engine import factory
from tandem.engine.base import Ending, Engine, EngineRequest, EngineSettings, Role, Step
from tandem.engine.mailbox import steps
from tandem.errors import EngineError, StartError, TandemError
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2


class ReferenceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of the input."""

    token_ids: list[int]
    max_tokens: int


async def generate(engine: Engine, requests: Sequence[ReferenceRequest]) -> list[list[int]]:
    """Greedy token ids for each request, one at a time. Raises TandemError where one fails."""
    outputs = []
    async with aclosing(steps(engine)) as coming:
        for number, asked in enumerate(requests, start=1):
            engine.submit(_greedy(number, asked))
            outputs.append(await _collect(coming))
    return outputs


def _greedy(number: int, asked: ReferenceRequest) -> EngineRequest:
    return EngineRequest(
        request_id=number,
        token_ids=asked.token_ids,
        sampling=common_pb2.SamplingParams(
            max_tokens=asked.max_tokens, top_p=1, top_k=-1, repetition_penalty=1
        ),
    )


async def _collect(coming: AsyncIterator[Step]) -> list[int]:
    """The tokens of the only open request."""
    tokens: list[int] = []
    async for step in coming:
        for delta in step:
            tokens.extend(delta.token_ids)
            if delta.end is Ending.FAILED:
                raise delta.error or EngineError("the engine gave no reason")
            if delta.end is not None:
                return tokens
    raise EngineError("the engine closed before the request ended")


async def _run(
    name: factory.EngineName,
    model_path: Path,
    options: Mapping[str, str],
    requests: Sequence[ReferenceRequest],
) -> None:
    settings = EngineSettings(
        model_path=model_path,
        model_name=model_path.name,
        max_sequences=1,
        host="127.0.0.1",
        options=options,
        registry=Registry(),
    )
    engine = factory.create(name, Role.AGGREGATED, settings)
    try:
        await engine.start()
        outputs = await generate(engine, requests)
    finally:
        await engine.close()
    sys.stdout.write(json.dumps(outputs) + "\n")


def main() -> int:
    """Exit status: 0, or 2 with a message where the input, the start or a request fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=typing.get_args(factory.EngineName), required=True)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--engine-options", default="", metavar="KEY=VALUE,...")
    arguments = parser.parse_args()
    options = dict(pair.split("=", 1) for pair in arguments.engine_options.split(",") if pair)
    try:
        requests = msgspec.json.decode(sys.stdin.buffer.read(), type=list[ReferenceRequest])
        uvloop.run(_run(arguments.engine, arguments.model_path, options, requests))
    except (msgspec.DecodeError, StartError, TandemError) as error:
        sys.stderr.write(f"tandem reference: {error}\n")
        return 2
    return 0
