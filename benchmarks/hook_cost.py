"""What output hooks cost a token, and what a hook in prefill costs the first one.

The worker's output pipeline runs for real, over steps that no engine computed: tokens to text,
hooks, rows, frames. Each kind of hooks runs in turn, several rounds of each, in one process; a
figure is the median of its rounds, and what hooks add is the difference to none in the same round.
CPU of the pool's processes is counted with the worker's.

    python benchmarks/hook_cost.py                  # about two minutes
    python benchmarks/hook_cost.py --json out.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine
import uvloop

from tandem.byte_budget import ByteBudget
from tandem.cli.client import Client
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.engine.base import (
    Delta,
    Ending,
    EngineDescription,
    EngineFigures,
    EngineRequest,
    Role,
    Step,
)
from tandem.hooks.contract import Chunk, Verdict, emit
from tandem.hooks.deferred import Ruling
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.config import WorkerConfig
from tandem.worker.core.machine import WorkerCore
from tandem.worker.counters import WorkerCounters
from tandem.worker.hooks import WorkerHooks
from tandem.worker.intake import Intake
from tandem.worker.records import Records
from tandem.worker.shell import Shell
from tandem_decode_worker.rules import DecodeRules

MODEL = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny"
STREAMS = (1, 64, 256)
ROUNDS = 7
TOKENS = 20_000
"""How many tokens one round makes, over all streams."""
PASS = "benchmarks.hook_cost:PassThrough"
COUNT = "examples.hooks:CountingHook"
PHRASES = [f"the forbidden phrase number {number}" for number in range(50)]
PHRASE_GUARD = {"path": "banned_phrases", "config": {"phrases": PHRASES}}
KINDS: dict[str, dict[str, Any]] = {
    "no hook": {},
    "one pass-through hook": {"chain": [PASS]},
    "phrase guard, 50 phrases": {"chain": [PHRASE_GUARD]},
    "chain of three": {"chain": [{"path": PASS, "name": name} for name in "abc"]},
    "pool of 2, pass-through": {"chain": [PASS], "workers": 2},
}
TARGETS = {
    "one pass-through hook": 1.0,
    "phrase guard, 50 phrases": 2.0,
    "pool of 2, pass-through": 6.0,
}
"""CPU microseconds added to a token at 64 streams."""
FIRST_TOKENS = 60


class PassThrough:
    """A hook that lets every chunk pass unchanged."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff)


class NoEngine:
    """Takes requests and does nothing with them."""

    async def start(self) -> EngineDescription:
        raise NotImplementedError

    def submit(self, request: EngineRequest) -> None:
        pass

    def cancel(self, request_id: int) -> None:
        pass

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        raise NotImplementedError

    def load(self) -> worker_pb2.Load:
        return worker_pb2.Load()

    def figures(self) -> EngineFigures:
        return EngineFigures()

    async def close(self) -> None:
        pass


class Bench:
    """A decode worker without engine and network."""

    def __init__(self, hooks: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        config = WorkerConfig(model_path=MODEL, hooks=dict(hooks))
        self._hooks = WorkerHooks.load("decode", config)
        self._text = tokenizer.encode("Once upon a time there was a phrase. ", special_tokens=False)
        limits = worker_pb2.Limits(max_sequences=1024, context_length=10**6, vocabulary=10**6)
        self._shell = Shell(
            partial(
                WorkerCore,
                rules=DecodeRules(),
                worker="bench",
                max_legs=1024,
                hooked=self._hooks is not None,
                budget=ByteBudget(),
            ),
            intake=Intake(
                role=Role.DECODE,
                model=config.model_name(),
                limits=limits,
                tokenizer=tokenizer,
                reads_text=lambda: self._hooks is not None,
                forced=(),
            ),
            engine=NoEngine(),
            hooks=None if self._hooks is None else self._hooks.runs,
            classifiers=None,
            records=Records(WorkerCounters()),
        )
        self._link = self._shell.connect("bench")
        self._ruled = asyncio.Event()
        self._waiting = 0
        self._leg = 0

    async def start(self) -> None:
        if self._hooks is not None:
            await self._hooks.runs.start(self._rulings)

    async def close(self) -> None:
        if self._hooks is not None:
            await self._hooks.runs.close()

    async def round(self, streams: int) -> float:
        """CPU microseconds a token, the pool's processes included. Steps follow one another as
        fast as they are judged.
        """
        requests = [self._begin() for _ in range(streams)]
        steps = max(20, TOKENS // streams)
        began = self._cpu_seconds()
        for number in range(steps):
            token = self._text[number % len(self._text)]
            await self._step([Delta(request, (token,)) for request in requests])
        spent = self._cpu_seconds() - began
        self._shell.disconnect(self._link)
        self._shell.on_step([Delta(request, (), Ending.CANCELLED) for request in requests])
        assert not len(self._shell)
        self._link = self._shell.connect("bench")
        return spent / (steps * streams) * 1e6

    async def _step(self, step: Step) -> None:
        self._ruled.clear()
        self._waiting = len(step)
        self._shell.on_step(step)
        while self._hooks is not None and self._waiting:
            await self._ruled.wait()
            self._ruled.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        self._link.take()

    def _rulings(self, rulings: Sequence[Ruling]) -> None:
        self._shell.on_rulings(rulings)
        self._waiting -= len(rulings)
        self._ruled.set()

    def _begin(self) -> int:
        self._leg += 1
        task = common_pb2.Task(
            trace_id="0" * 31 + "1",
            model=MODEL.name,
            prompt_token_ids=[1],
            sampling=common_pb2.SamplingParams(
                max_tokens=10**5, top_p=1, top_k=-1, repetition_penalty=1
            ),
            want_text=True,
            streaming=True,
        )
        command = worker_pb2.StartLeg(
            leg=self._leg,
            destination=1,
            sequence=self._leg,
            room=1,
            kv_peer="x:1",
            timeout_ms=600_000,
            task=task.SerializeToString(),
        )
        self._shell.command(self._link, worker_pb2.WorkerCommand(start=[command]))
        return self._leg

    def _cpu_seconds(self) -> float:
        pool = None if self._hooks is None else self._hooks.pool
        pids = [] if pool is None else pool.pids
        return time.process_time() + sum(map(machine.cpu_seconds, pids))


@dataclass(frozen=True)
class Cost:
    """What one kind of hooks costs at one number of streams, in CPU microseconds a token."""

    hooks: str
    streams: int
    us_per_token: float
    added: float


async def costs() -> list[Cost]:
    tokenizer = Tokenizer.load(MODEL)
    benches = {kind: Bench(hooks, tokenizer) for kind, hooks in KINDS.items()}
    for bench in benches.values():
        await bench.start()
    found = []
    for streams in STREAMS:
        rounds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            for kind, bench in benches.items():
                rounds[kind].append(await bench.round(streams))
        for kind, figures in rounds.items():
            differences = [one - none for one, none in zip(figures, rounds["no hook"], strict=True)]
            found.append(
                Cost(kind, streams, statistics.median(figures), statistics.median(differences))
            )
    for bench in benches.values():
        await bench.close()
    return found


def first_tokens() -> dict[str, float]:
    """Median milliseconds to the first token of a stream, one client, sim engine, by what runs in
    prefill.
    """
    found = {}
    kinds: dict[str, tuple[str, ...]] = {
        "no hook in prefill": (),
        "a hook in prefill": (f"--hook={COUNT}",),
        "the same, --propagate-terminate": (f"--hook={COUNT}", "--propagate-terminate"),
    }
    for kind, flags in kinds.items():
        options = StackOptions(
            model_path=MODEL, engine="sim", flags={"prefill_worker": flags}, hook_decode=COUNT
        )
        with TemporaryDirectory() as run_dir, Stack(options, run_dir=Path(run_dir)) as stack:
            stack.wait_ready(timeout_seconds=60)
            client = Client(stack.url)
            seconds = [_first_token(client) for _ in range(FIRST_TOKENS)]
        found[kind] = statistics.median(seconds) * 1000
    return found


def _first_token(client: Client) -> float:
    body = {"model": MODEL.name, "prompt": "Once upon", "max_tokens": 2, "stream": True}
    began = time.perf_counter()
    events = client.stream("/v1/completions", body)
    next(iter(events))
    seconds = time.perf_counter() - began
    for _ in events:
        pass
    return seconds


def table(found: Sequence[Cost], first: Mapping[str, float]) -> str:
    lines = [f"machine: {machine.describe()}", "", "CPU microseconds a token (added by hooks)"]
    lines.append(f"{'hooks':<28}" + "".join(f"{streams:>10} streams" for streams in STREAMS))
    for kind in KINDS:
        cells = [
            f"{cost.us_per_token:>9.2f} ({cost.added:+5.2f})"
            for cost in found
            if cost.hooks == kind
        ]
        target = f"  target {TARGETS[kind]:+.0f} at 64" if kind in TARGETS else ""
        lines.append(f"{kind:<28}" + " ".join(cells) + target)
    lines += ["", "milliseconds to the first token, one client, median"]
    lines += [f"{kind:<34}{milliseconds:>8.2f}" for kind, milliseconds in first.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found, first = uvloop.run(costs()), first_tokens()
    sys.stdout.write(table(found, first) + "\n")
    if arguments.json:
        rows = [vars(cost) for cost in found]
        arguments.json.write_text(json.dumps({"rows": rows, "first_token_ms": first}, indent=2))


if __name__ == "__main__":
    main()
