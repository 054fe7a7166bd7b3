"""What a key that asks for ten times its share does to the time to first token of others.

One stack of the sim engine with few slots serves eight keys. Each keeps so many requests open that
it would fill that many slots, and sends the next one as soon as one has ended: so all slots are
always busy, however fast the machine is. What is measured is the time to first token of six calm
keys, which want half of their share, while the eighth wants its share ("full", twice a round) or
ten times that ("greedy"). "one key" is "greedy" with one key for all of them, whose requests are
then served as they come.

The fleets of a round run in turn; the two full ones say how much the machine alone moves a figure.
Beside milliseconds, a wait is given in turns: how many requests of anybody got their first token
meanwhile. A machine that stalls makes milliseconds of all fleets longer, and leaves turns as they
are. Ratios are of one run on one machine.

    python benchmarks/fairness.py                       # about 7 minutes
    python benchmarks/fairness.py --rounds 2 --seconds 10 --json out.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import machine
from token_cost import MODEL

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.keys.ring import digest_of

SLOTS = 16
STEP_MS, TOKENS = 100, 10
TURN = STEP_MS * TOKENS / SLOTS / 1000
"""Seconds from one slot that becomes free to the next, where all are busy."""
WARM_SECONDS = 3.0
"""Until all slots are busy; what is asked before is not counted."""
CALM = (1,) * 6
BUSY, SHARE = 12, 2
FLEETS: Mapping[str, tuple[int, ...]] = {
    "full": (*CALM, BUSY, SHARE),
    "greedy": (*CALM, BUSY, 10 * SHARE),
    "full again": (*CALM, BUSY, SHARE),
    "one key": (*CALM, BUSY, 10 * SHARE),
}
"""How many slots each client would fill; the calm ones are measured."""
KEYS = len(CALM) + 2
Unit = Literal["seconds", "turns"]
UNITS: tuple[Unit, ...] = ("seconds", "turns")


class Wait(NamedTuple):
    """For the first token of one request."""

    seconds: float
    turns: float
    """Requests of anybody that got theirs meanwhile."""


Waits = Sequence[Wait | None]
"""None: of a request that was refused."""


@dataclass
class Fleet:
    """One run: what all clients ask for in some seconds."""

    stack: Stack
    seconds: float
    started: int = 0
    """Requests that have got a first token."""

    async def run(self, name: str, seed: int) -> Waits:
        """The waits of the calm clients."""
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(
                    self._client(
                        "key0" if name == "one key" else f"key{number}",
                        random.Random(f"{seed} {number} {place}"),
                    )
                )
                for number, slots in enumerate(FLEETS[name])
                for place in range(slots)
            ]
        return [each for calm in clients[: sum(CALM)] for each in calm.result()]

    async def _client(self, key: str, source: random.Random) -> Waits:
        """What came of one request after the other."""
        began, found = time.monotonic(), []
        while (at := time.monotonic() - began) < self.seconds:
            wait = await self._ask(key, source.randint(TOKENS // 2, TOKENS * 3 // 2))
            if at >= WARM_SECONDS:
                found.append(wait)
        return found

    async def _ask(self, key: str, tokens: int) -> Wait | None:
        """Read one streamed answer to its end."""
        host, _, port = self.stack.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            sent, before = time.perf_counter(), self.started
            writer.write(request(f"{host}:{port}", key, self.stack.model, tokens))
            if b" 200 " not in await reader.readline():
                return None
            await reader.readuntil(b"data: ")
            wait = Wait(time.perf_counter() - sent, float(self.started - before))
            self.started += 1
            await reader.read()
            return wait
        finally:
            writer.close()


def request(address: str, key: str, model: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": "Hello",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def percentile(waits: Waits, percent: int, unit: Unit) -> float:
    """Taken over the requests that were served."""
    served = sorted(getattr(each, unit) for each in waits if each is not None)
    return float(statistics.quantiles(served, n=100)[percent - 1])


def report(rounds: Sequence[Mapping[str, Waits]]) -> dict[str, Any]:
    """All rounds together, and the ratios of p99 in each round."""
    together = {name: [each for found in rounds for each in found[name]] for name in FLEETS}
    found: dict[str, Any] = {"machine": machine.describe(), "turn_ms": TURN * 1000}
    found["fleets"] = {
        name: {
            "requests": len(waits),
            "refused": waits.count(None),
            "p50_ms": 1000 * percentile(waits, 50, "seconds"),
            "p99_ms": 1000 * percentile(waits, 99, "seconds"),
            "p50_turns": percentile(waits, 50, "turns"),
            "p99_turns": percentile(waits, 99, "turns"),
        }
        for name, waits in together.items()
    }
    found["ratios"] = {
        unit: {
            "greedy to full": [_ratio(each, "greedy", "full", unit) for each in rounds],
            "full to full": [_ratio(each, "full again", "full", unit) for each in rounds],
        }
        for unit in UNITS
    }
    full = [*together["full"], *together["full again"]]
    found["allowed"] = {
        unit: 1.1 * percentile(full, 99, unit) + turn
        for unit, turn in zip(UNITS, (TURN, 1.0), strict=True)
    }
    return found


def _ratio(found: Mapping[str, Waits], name: str, other: str, unit: Unit) -> float:
    return percentile(found[name], 99, unit) / percentile(found[other], 99, unit)


def table(found: Mapping[str, Any]) -> str:
    fleets = found["fleets"]
    columns = ("requests", "refused", "p50_ms", "p99_ms", "p50_turns", "p99_turns")
    lines = [
        f"machine: {found['machine']}",
        "",
        "waits for the first token, of keys that want half of their share",
        f"{'fleet':>10} " + " ".join(f"{name.replace('_', ' '):>9}" for name in columns),
    ]
    for name, row in fleets.items():
        lines.append(f"{name:>10} " + " ".join(f"{row[column]:9.0f}" for column in columns))
    lines.append(f"one slot's turn: {found['turn_ms']:.1f} ms")
    for unit, of in found["ratios"].items():
        for name, ratios in of.items():
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(
                f"p99 in {unit}, {name}: median {statistics.median(ratios):.2f}; rounds {each}"
            )
    allowed, greedy = found["allowed"], fleets["greedy"]
    for unit, p99 in (("seconds", greedy["p99_ms"] / 1000), ("turns", greedy["p99_turns"])):
        verdict = "held" if p99 < allowed[unit] else "MISSED"
        lines.append(f"p99 greedy {p99:.2f} {unit}, allowed {allowed[unit]:.2f}: {verdict}")
    return "\n".join(lines)


def stack_options(folder: Path) -> StackOptions:
    keys = folder / "keys.jsonl"
    names = [f"key{number}" for number in range(KEYS)]
    lines = (json.dumps({"name": name, "sha256": digest_of(name.encode())}) for name in names)
    keys.write_text("\n".join(lines))
    slots = (f"--max-sequences={SLOTS}",)
    return StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=(f"step_ms={STEP_MS}",),
        flags={
            "frontend": (f"--api-keys-file={keys}",),
            "prefill_worker": slots,
            "decode_worker": slots,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds of each fleet and round"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the report here as well")
    options = parser.parse_args()
    rounds: list[dict[str, Waits]] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Stack(stack_options(folder), run_dir=folder / "run") as stack:
            stack.wait_ready(timeout_seconds=60)
            for number in range(options.rounds):
                rounds.append({})
                for which in FLEETS:
                    fleet = Fleet(stack, options.seconds)
                    rounds[-1][which] = asyncio.run(fleet.run(which, number))
                print(f"  round {number + 1} of {options.rounds} done", file=sys.stderr)
    found = report(rounds)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
