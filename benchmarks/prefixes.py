"""What the choice of prefill workers by their prefix caches is worth: turns of conversations that
share a beginning, sent to a whole stack that chooses by one policy after the other.

    python benchmarks/prefixes.py                     # the sim engine, about a minute
    python benchmarks/prefixes.py --engine sglang     # SGLang on CPUs, with the tiny model

Each policy gets a stack of its own, and the same prompts. Printed are the share of prompt tokens
that were cached, and the time to the first token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import machine

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.engine import model_files

MODEL_PATH = Path(__file__).resolve().parents[1] / "model" / "tandem-tiny"
ENGINES = {
    "sim": ("prefill_ms_per_token=0.2", "step_ms=1", "prefix_cache_tokens=16000"),
    "sglang": ("max_total_tokens=8192",),
}
"""Options of each, with which a worker's cache holds some of the conversations."""
TURNS = 4


@dataclass(slots=True)
class Answer:
    """What was told of one turn."""

    ttft: float
    prompt: int
    cached: int


async def turn(client: httpx.AsyncClient, prompt: list[int]) -> Answer:
    """Ask for a few tokens of a prompt. Raises RuntimeError where the request fails."""
    body = {
        "model": "tandem-tiny",
        "prompt": prompt,
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, ttft, usage = time.perf_counter(), 0.0, {}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.is_error:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            ttft = ttft or time.perf_counter() - began
            said = json.loads(line[6:])
            if "error" in said:
                raise RuntimeError(line)
            usage = said.get("usage") or usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Answer(ttft, usage["prompt_tokens"], cached)


async def conversation(
    client: httpx.AsyncClient, dice: random.Random, tokens: int, vocabulary: int, pause: float
) -> list[Answer]:
    """Each turn is the one before and as many tokens again."""
    prompt: list[int] = []
    answers = []
    for _ in range(TURNS):
        prompt += [dice.randrange(10, vocabulary) for _ in range(tokens // TURNS)]
        answers.append(await turn(client, prompt))
        await asyncio.sleep(dice.uniform(0, 2 * pause))
    return answers


async def load(url: str, count: int, at_once: int, tokens: int, pause: float) -> list[Answer]:
    """So many conversations, a few of them at once."""
    limit = asyncio.Semaphore(at_once)
    vocabulary = model_files.vocabulary(MODEL_PATH)

    async def one(number: int) -> list[Answer]:
        async with limit:
            return await conversation(client, random.Random(number), tokens, vocabulary, pause)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return [each for some in await asyncio.gather(*map(one, range(count))) for each in some]


def measured(options: argparse.Namespace, policy: str) -> list[Answer]:
    """All turns, by a stack that chooses so."""
    stack_options = StackOptions(
        model_path=MODEL_PATH,
        engine=options.engine,
        prefill=options.prefill,
        decode=1,
        engine_options=ENGINES[options.engine],
        flags={"router": (f"--prefill-policy={policy}",)},
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(stack_options, run_dir=Path(folder)) as stack,
    ):
        stack.wait_ready(timeout_seconds=280)
        return asyncio.run(
            load(stack.url, options.count, options.at_once, options.tokens, options.pause)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default="sim")
    parser.add_argument("--policies", nargs="+", default=["least_loaded", "prefix"])
    parser.add_argument("--prefill", type=int, default=2, help="prefill workers")
    parser.add_argument("--count", type=int, default=24, help="conversations")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument(
        "--tokens", type=int, default=1600, help="tokens of a conversation's last turn"
    )
    parser.add_argument(
        "--pause", type=float, default=0.3, help="between turns, seconds in the mean"
    )
    options = parser.parse_args()
    print(f"machine: {machine.describe()}; {options.engine}, {options.prefill} prefill workers")
    for policy in options.policies:
        answers = measured(options, policy)
        times = sorted(each.ttft for each in answers)
        share = sum(each.cached for each in answers) / sum(each.prompt for each in answers)
        print(
            f"{policy:<14} {len(answers)} turns  cached {share:.3f}"
            f"  TTFT mean {statistics.mean(times) * 1e3:.0f} ms"
            f"  p90 {times[int(0.9 * len(times))] * 1e3:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
