"""Whether what keys took of the workers, with what nobody took, is all of the workers' time: a
stack on the sim engine under the load of three keys, a worker and a router of which are killed
again and again. Beside it stands what the answers' `usage` says that they took.

    python benchmarks/cost_sums.py                      # two minutes
    python benchmarks/cost_sums.py --seconds 3600

Workers are scraped once a second, as Prometheus would. Of a worker that is killed, what it did
since its last scrape is lost, with the time in which it did it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import machine
from prometheus_client.parser import text_string_to_metric_families

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.keys.ring import digest_of

MODEL = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny"
CLIENTS = {"small": 2, "large": 6, "late": 1}
"""How many clients of each key ask one request after the other."""
PRICES = {"*": {"prefill_second": 1.0, "decode_slot_second": 0.01, "kv_token_second": 1e-6}}
KILL_SECONDS = 10.0
BACK_SECONDS = 2.0
SERIES = ("key_seconds", "key_slot_seconds", "key_kv_token_seconds")
Series = dict[tuple[str, str], float]
"""The value of a series of one worker, by its name and its key."""


@dataclass(slots=True)
class Life:
    """What one process of a worker said first and last, and when."""

    began: float
    first: Series
    ended: float
    last: Series

    @property
    def took(self) -> Series:
        return {name: value - self.first.get(name, 0.0) for name, value in self.last.items()}


@dataclass
class Sums:
    """What was measured."""

    lives: dict[tuple[str, float], Life] = field(default_factory=dict)
    """By the worker's name and when its process began, as the process says it."""
    told: Counter[str] = field(default_factory=Counter)
    """Sums of the answers' `cost_details`, by key and figure, as in `large prefill_seconds`."""
    answered: int = 0
    failed: int = 0

    def took(self, phase: str, series: str, key: str) -> float:
        return sum(
            life.took.get((series, key), 0.0)
            for (name, _), life in self.lives.items()
            if name.startswith(phase)
        )

    @property
    def keys(self) -> list[str]:
        """The names of keys, beside the series that have none."""
        return sorted({key for life in self.lives.values() for _, key in life.last} - {"*"})

    def share(self, phase: str) -> float:
        """What keys and idleness come to, as a share of the time of a phase's workers."""
        lives = [life for (name, _), life in self.lives.items() if name.startswith(phase)]
        took = sum(self.took(phase, "key_seconds", key) for key in self.keys)
        idle = sum(life.took["idle_seconds", "*"] for life in lives)
        return (took + idle) / sum(life.ended - life.began for life in lives)


def series_of(text: str) -> tuple[Series, float]:
    """What a worker's exposition says of its time, and when its process began."""
    found: Series = {}
    began = 0.0
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix("tandem_worker_")
        if name == "process_start_time_seconds":
            began = family.samples[0].value
        elif name in (*SERIES, "idle_seconds"):
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    found[name, sample.labels.get("key", "*")] = sample.value
    return found, began


async def scrape(stack: Stack, sums: Sums) -> None:
    """Once a second, all workers, until cancelled."""
    async with httpx.AsyncClient(timeout=5) as client:
        while True:
            for name, component in list(stack.components.items()):
                if "worker" not in name:
                    continue
                with suppress(httpx.HTTPError):
                    answer = await client.get(f"http://{component.launch.metrics}/metrics")
                    now, (found, began) = time.monotonic(), series_of(answer.text)
                    if found:
                        life = Life(now, found, now, found)
                        life = sums.lives.setdefault((name, began), life)
                        life.ended, life.last = now, found
            await asyncio.sleep(1)


async def strike(stack: Stack, seconds: float) -> None:
    """Kill a worker of each phase and a router in turn, until cancelled."""
    for name in itertools.cycle(("decode_worker-1", "router-1", "prefill_worker-1")):
        await asyncio.sleep(seconds)
        process = stack.components[name].process
        process.kill()
        process.wait()
        await asyncio.sleep(BACK_SECONDS)
        stack.restart(name)


async def ask(stack: Stack, key: str, until: float, sums: Sums, seed: int) -> None:
    """One client: a request after the other."""
    draw = random.Random(seed)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as client:
        while time.monotonic() < until:
            body = {
                "model": "tandem-tiny",
                "prompt": [draw.randrange(300, 1000) for _ in range(draw.choice((20, 200, 900)))],
                "max_tokens": draw.choice((1, 8, 60)),
                "ignore_eos": True,
            }
            try:
                answer = await client.post("/v1/completions", json=body)
                usage = answer.raise_for_status().json()["usage"]
            except httpx.HTTPError:
                sums.failed += 1
                await asyncio.sleep(0.2)
                continue
            sums.answered += 1
            for figure, value in usage["cost_details"].items():
                sums.told[f"{key} {figure}"] += value


async def measure(stack: Stack, seconds: float, kill_seconds: float) -> Sums:
    """Load for so long, and what became of it."""
    sums, until = Sums(), time.monotonic() + seconds
    beside = [
        asyncio.create_task(scrape(stack, sums)),
        asyncio.create_task(strike(stack, kill_seconds)),
    ]
    keys = [key for key, clients in CLIENTS.items() for _ in range(clients)]
    async with asyncio.TaskGroup() as asking:
        for seed, key in enumerate(keys):
            asking.create_task(ask(stack, key, until, sums, seed))
    await asyncio.sleep(2.5)  # for a last scrape
    for task in beside:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return sums


def options_of(folder: Path) -> StackOptions:
    """Two of everything, and keys."""
    keys = folder / "keys.jsonl"
    rows = [{"name": key, "sha256": digest_of(key.encode())} for key in CLIENTS]
    keys.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=("step_ms=10", "prefill_base_ms=5", "prefill_ms_per_token=0.05"),
        prefill=2,
        decode=2,
        routers=2,
        flags={"frontend": (f"--api-keys-file={keys}", f"--prices={json.dumps(PRICES)}")},
    )


def run(seconds: float, kill_seconds: float = KILL_SECONDS) -> Sums:
    """A stack of its own, for so long."""
    with TemporaryDirectory() as folder:
        stack = Stack(options_of(Path(folder)), run_dir=Path(folder) / "run")
        try:
            stack.start()
            stack.wait_ready(timeout_seconds=60)
            return asyncio.run(measure(stack, seconds, kill_seconds))
        finally:
            stack.stop(grace_seconds=3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    sums = run(options.seconds)
    print(f"machine: {machine.describe()}\n")
    print(f"{sums.answered} answers, {sums.failed} failures, {len(sums.lives)} worker processes\n")
    print("key       prefill s   told  decode slot s   told   KV token s    told")
    for key in sums.keys:
        prefill = sums.took("prefill", "key_seconds", key)
        slots = sums.took("decode", "key_slot_seconds", key)
        kv = sum(sums.took(phase, "key_kv_token_seconds", key) for phase in ("prefill", "decode"))
        figures = ("prefill_seconds", "decode_slot_seconds", "kv_token_seconds")
        told = [sums.told[f"{key} {figure}"] for figure in figures]
        print(
            f"{key or '(none)':<9} {prefill:9.2f} {told[0]:6.2f} {slots:14.2f} {told[1]:6.1f}"
            f" {kv:12.0f} {told[2]:7.0f}"
        )
    for phase in ("prefill", "decode"):
        print(f"\nof the time of {phase} workers, keys and idleness are {sums.share(phase):.2%}")


if __name__ == "__main__":
    main()
