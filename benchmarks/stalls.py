"""How long one hostile request keeps an event loop: the longest turn of each component's loop, and
the longest gap between the tokens of somebody else's stream.

One stack of the sim engine serves one client that streams (the probe), while one request of each
class is sent, each on its own. A turn is measured in CPU time of the loop's thread (stall_watch),
so that other processes of the machine do not count; a gap is measured by the clock, and counts
them, and whatever else lies between two tokens. The engine's own work is in the workers' turns: the
sim engine computes on their loop, as no real engine does.

    python benchmarks/stalls.py                         # about six minutes
    python benchmarks/stalls.py --only Submit --names
    python benchmarks/stalls.py --only HTTP/2           # floods of frames at gRPC ports
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import machine
import stall_requests
from token_cost import MODEL

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

ALLOWED_MS = 50.0
STEP_MS = 10
SETTLE_SECONDS = 1.0
"""After a class, for what it left running."""
LOOPS = ("frontend", "router", "prefill_worker-0", "decode_worker-0")


class Turn(NamedTuple):
    ended: float
    ms: float
    """CPU time of the loop's thread."""
    clock_ms: float
    place: str


class Probe:
    """A client that streams without end, in a process of its own, and when its tokens came."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._path = folder / "tokens"
        self._path.touch()
        arguments = (stack.components["frontend"].address, stack.model, self._path)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=stream_for_ever, args=arguments, daemon=True)
        self._process.start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()

    def longest_gap_ms(self, began: float, ended: float) -> float:
        """Between two tokens that followed each other, one of them in this time at least."""
        times = map(float, self._path.read_text().splitlines()[:-1])
        gaps = [
            after - before
            for before, after in itertools.pairwise(times)
            if after > began and before < ended
        ]
        return 1000 * max(gaps, default=ended - began)


def stream_for_ever(address: str, model: str, path: Path) -> None:
    """Write down when each token came of one answer after the other."""
    body = {
        "model": model,
        "prompt": "Hello",
        "stream": True,
        "ignore_eos": True,
        "max_tokens": stall_requests.CONTEXT // 2,
        "timeout": 600,
    }
    headers = {"Content-Type": "application/json"}
    with path.open("a", buffering=1) as times:
        while True:
            connection = http.client.HTTPConnection(address)
            connection.request("POST", "/v1/completions", json.dumps(body), headers=headers)
            response = connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: {"):
                    times.write(f"{time.monotonic()}\n")


@contextmanager
def serving() -> Iterator[tuple[Stack, Path]]:
    """A stack whose loops are watched, and the folder of what was seen."""
    watch = str(Path(__file__).resolve().parent / "stall_watch")
    with TemporaryDirectory() as name:
        folder = Path(name)
        seen = folder / "turns"
        seen.mkdir()
        os.environ["STALL_WATCH"] = str(seen)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [watch, os.getenv("PYTHONPATH")]))
        options = StackOptions(
            model_path=MODEL,
            engine="sim",
            engine_options=(
                f"step_ms={STEP_MS}",
                f"context_length={stall_requests.CONTEXT}",
                "kv_bytes_per_token=8",
            ),
        )
        with Stack(options, run_dir=folder / "run") as stack:
            stack.wait_ready(timeout_seconds=60)
            yield stack, seen


def turns(stack: Stack, seen: Path, component: str, began: float, ended: float) -> list[Turn]:
    """The dear turns of a component's loop in this time."""
    path = seen / str(stack.components[component].pid)
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        at, ms, clock_ms, place = line.split(" ", 3)
        if began <= float(at) <= ended:
            found.append(Turn(float(at), float(ms), float(clock_ms), place))
    return found


def measure(stack: Stack, seen: Path, probe: Probe, name: str, *, names: bool) -> bool:
    """Send one class and print its row. Returns whether every turn was short enough."""
    began = time.monotonic()
    outcome = stall_requests.CLASSES[name](stack)
    sent = time.monotonic()
    time.sleep(SETTLE_SECONDS)
    ended = time.monotonic()
    dearest = {
        component: max(
            turns(stack, seen, component, began, ended),
            key=lambda turn: turn.ms,
            default=Turn(0.0, 0.0, 0.0, ""),
        )
        for component in LOOPS
    }
    columns = " ".join(f"{turn.ms:9.1f}" for turn in dearest.values())
    gap = probe.longest_gap_ms(began, ended)
    print(f"{name:<36} {sent - began:7.1f} {gap:9.1f} {columns}  {outcome}", flush=True)
    if names:
        for component, turn in dearest.items():
            if turn.ms > ALLOWED_MS / 2:
                print(f"    {component}: {turn.clock_ms:.1f} by the clock, in {turn.place}")
    return all(turn.ms <= ALLOWED_MS for turn in dearest.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="classes whose name holds this text")
    parser.add_argument("--names", action="store_true", help="say what the dearest turns did")
    options = parser.parse_args()
    wanted = [name for name in stall_requests.CLASSES if options.only in name]
    held: list[bool] = []
    with serving() as (stack, seen):
        probe = Probe(stack, seen)
        time.sleep(3 * SETTLE_SECONDS)
        try:
            print(f"machine: {machine.describe()}\n")
            print(f"{'':<36} {'':>7} {'gap of':>9} {'longest turn of a loop, ms':>29}")
            print(
                f"{'class':<36} {'seconds':>7} {'probe, ms':>9} "
                f"{'frontend':>9} {'router':>9} {'prefill':>9} {'decode':>9}  answer"
            )
            held += [measure(stack, seen, probe, name, names=options.names) for name in wanted]
        finally:
            probe.stop()
    print(f"{sum(held)} of {len(held)} classes keep every turn below {ALLOWED_MS:g} ms")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
