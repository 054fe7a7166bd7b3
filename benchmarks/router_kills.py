"""What the prefix caches of a fleet find while its routers die: a whole stack on the sim engine
with several routers, one of them killed so often, and a trace whose requests come at their times.

    python benchmarks/router_kills.py conversation.jsonl                # sixteen minutes
    python benchmarks/router_kills.py conversation.jsonl --seconds 600 --routers 4

Prompts are sent as token ids, as long as in the trace and with the beginnings in common that the
trace says; two tokens of output are asked for. A killed router comes back after five seconds, and
knows nothing. Printed is the share of the prompts' tokens that were cached, and the share that one
cache as large as those of all workers would have had, if each prompt were in it as soon as it came.
Both count the requests that were answered, and no others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import machine
from prefixes import turn

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_router.policies import POLICIES
from tandem_tools import trace as traces
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay.fleet import RESTART_SECONDS
from tandem_tools.trace_replay.legs import blocks_of
from tandem_tools.trace_replay.prefix_cache import IdealCache

MODEL = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny"
TOKENS_A_SECOND = 20_480
CONTEXT = 200_000
VOCABULARY = range(300, 1_000)
SLOTS = 512


@dataclass(slots=True)
class Answers:
    """What became of the requests."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    ideal_tokens: int = 0
    failed: list[str] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)


async def kill_in_turn(stack: Stack, seconds: float) -> None:
    """Kill one router after the other, until cancelled."""
    routers = [name for name in stack.components if name.startswith("router")]
    for name in itertools.cycle(routers):
        await asyncio.sleep(seconds)
        process = stack.components[name].process
        process.kill()
        process.wait()
        await asyncio.sleep(RESTART_SECONDS)
        stack.restart(name)


def prompt_of(line: TracedRequest) -> list[int]:
    """Tokens that are alike as far as the blocks of a trace are."""
    found: list[int] = []
    for each in line.hash_ids:
        found += random.Random(each).choices(VOCABULARY, k=traces.BLOCK_TOKENS)
    return found[: line.input_length]


async def ask(client: httpx.AsyncClient, line: TracedRequest, ideal: int, told: Answers) -> None:
    """Send one request, and note what became of it. `ideal`: tokens that one cache had of it."""
    try:
        answer = await turn(client, prompt_of(line))
    except (httpx.HTTPError, RuntimeError) as failure:
        told.failed.append(repr(failure))
        return
    told.ttft.append(answer.ttft)
    told.prompt_tokens += answer.prompt
    told.cached_tokens += answer.cached
    told.ideal_tokens += ideal


async def play(stack: Stack, trace: tuple[TracedRequest, ...], options: Options) -> Answers:
    """Send each request at its time, whatever has become of those before."""
    told, cache = Answers(), IdealCache(options.prefill * options.cache_tokens)
    killing = asyncio.create_task(kill_in_turn(stack, options.kill_seconds))
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=300, limits=limits) as client,
        asyncio.TaskGroup() as asking,
    ):
        began = time.monotonic() - trace[0].timestamp / 1000
        for line in trace:
            await asyncio.sleep(began + line.timestamp / 1000 - time.monotonic())
            ideal = cache.take(blocks_of(line), line.input_length)
            asking.create_task(ask(client, line, ideal, told))
    killing.cancel()
    with suppress(asyncio.CancelledError):
        await killing
    return told


class Options(argparse.Namespace):
    """What the command line says."""

    trace: Path
    seconds: float
    routers: int
    kill_seconds: float
    prefill: int
    cache_tokens: int
    policy: str


def stack_options(options: Options) -> StackOptions:
    engine = {
        "prefill_ms_per_token": 1000 / TOKENS_A_SECOND,
        "prefix_cache_tokens": options.cache_tokens,
        "context_length": CONTEXT,
        "kv_bytes_per_token": 8,
    }
    return StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=tuple(f"{name}={value}" for name, value in engine.items()),
        prefill=options.prefill,
        decode=2,
        routers=options.routers,
        flags={
            "router": (f"--prefill-policy={options.policy}",),
            "prefill_worker": (f"--max-sequences={SLOTS}",),
            "decode_worker": (f"--max-sequences={SLOTS}",),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=900, help="seconds of the trace, from its start"
    )
    parser.add_argument("--routers", type=int, default=8)
    parser.add_argument("--kill-seconds", type=float, default=60)
    parser.add_argument("--prefill", type=int, default=6, help="prefill workers")
    parser.add_argument(
        "--cache-tokens",
        type=int,
        default=6_144_000,
        help="tokens that the cache of each worker holds",
    )
    parser.add_argument("--policy", choices=[*POLICIES], default="prefix")
    options = parser.parse_args(namespace=Options())
    trace = traces.read(options.trace, seconds=options.seconds)
    print(f"machine: {machine.describe()}", flush=True)
    with (
        TemporaryDirectory() as folder,
        Stack(stack_options(options), run_dir=Path(folder), parent=os.getpid()) as stack,
    ):
        stack.wait_ready(timeout_seconds=120)
        told = asyncio.run(play(stack, trace, options))
    hit, ideal = (each / told.prompt_tokens for each in (told.cached_tokens, told.ideal_tokens))
    times = sorted(told.ttft)
    print(
        f"{options.routers} routers, {len(trace)} requests, {len(told.failed)} failed: hit rate"
        f" {hit:.3f}, ideal {ideal:.3f}, {hit / ideal:.1%} of it; TTFT mean"
        f" {statistics.mean(times):.2f} s, p90 {times[int(0.9 * len(times))]:.2f} s"
    )
    for error, count in Counter(told.failed).most_common(5):
        print(f"  {count} failed: {error}")


if __name__ == "__main__":
    main()
