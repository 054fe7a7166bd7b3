"""What a key that asks for ten times its share does to another key's time to first token.

A stack of the sim engine with few slots serves four keys, each of which sends requests by chance
(Poisson). In turn the fleet is calm, is full with three keys a little beyond a share, and has one
key at ten times its share. Printed is the time to first token of a key that asks for 60 % of its
share.

    python benchmarks/fairness.py                       # about ten minutes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
from token_cost import MODEL

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.keys.ring import digest_of

SLOTS, KEYS = 16, 4
STEP_MS, TOKENS = 20, 100
HOLD_SECONDS = STEP_MS * TOKENS / 1000
SHARE = SLOTS / KEYS / HOLD_SECONDS
"""Requests a second that keep a key's slots busy."""
FLEETS = {
    "calm": (0.6, 0.6, 0.6, 0.6),
    "full": (0.6, 1.3, 1.3, 1.3),
    "hog": (0.6, 10.0, 0.6, 0.6),
}
"""What each key asks for, in shares."""


async def ask(host: str, port: int, key: str, model: str) -> float | None:
    """Seconds to the first token of one streamed answer, which is read to its end; None: it was
    refused.
    """
    body = json.dumps(
        {
            "model": model,
            "prompt": "Hello",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        sent = time.perf_counter()
        writer.write(head.encode() + body)
        status = await reader.readline()
        await reader.readuntil(b"data: ")
        first = time.perf_counter() - sent
        await reader.read()
        return first if b" 200 " in status else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


async def demand(
    address: tuple[str, int], key: str, model: str, *, rate: float, seconds: float, seed: int
) -> list[float | None]:
    """What came of a key's requests, `rate` a second."""
    source, tasks = random.Random(f"{key} {seed}"), []
    ends = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < ends:
            await asyncio.sleep(source.expovariate(rate))
            tasks.append(group.create_task(ask(*address, key, model)))
    return [task.result() for task in tasks]


async def fleet(stack: Stack, shares: tuple[float, ...], seconds: float, seed: int) -> list[float]:
    """Times to first token of the first key."""
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    async with asyncio.TaskGroup() as group:
        runs = [
            group.create_task(
                demand(
                    (host, int(port)),
                    f"key{number}",
                    stack.model,
                    rate=share * SHARE,
                    seconds=seconds,
                    seed=seed,
                )
            )
            for number, share in enumerate(shares)
        ]
    return [each for each in runs[0].result() if each is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each fleet and round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.jsonl"
        lines = (
            json.dumps({"name": name, "sha256": digest_of(name.encode())})
            for name in (f"key{number}" for number in range(KEYS))
        )
        keys.write_text("\n".join(lines))
        slots = (f"--max-sequences={SLOTS}",)
        stack_options = StackOptions(
            model_path=MODEL,
            engine="sim",
            engine_options=(f"step_ms={STEP_MS}",),
            flags={
                "frontend": (f"--api-keys-file={keys}",),
                "prefill_worker": slots,
                "decode_worker": slots,
            },
        )
        print(f"machine: {machine.describe()}\n\nmilliseconds to the first token of a calm key")
        print(f"{'fleet':>6} {'requests':>9} {'median':>8} {'p99':>8}")
        with Stack(stack_options, run_dir=Path(folder) / "run") as stack:
            stack.wait_ready(timeout_seconds=60)
            for name, shares in FLEETS.items():
                found: list[float] = []
                for seed in range(options.rounds):
                    found += asyncio.run(fleet(stack, shares, options.seconds, seed))
                found.sort()
                median, p99 = statistics.median(found), found[int(0.99 * len(found))]
                print(f"{name:>6} {len(found):9d} {median * 1000:8.1f} {p99 * 1000:8.1f}")
        print(f"one slot's turn: {HOLD_SECONDS / SLOTS * 1000:.1f} ms")


if __name__ == "__main__":
    main()
