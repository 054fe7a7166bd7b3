"""What a gateway before Tandem costs, and what an endpoint picker costs and decides worse.

A real Envoy stands before a running stack with the sim engine: as a plain proxy, and asking an
endpoint picker over ext_proc, which is sent a request's head, its body, or its answer too. The ways
are measured in turns on one stack; a figure is the median of its rounds, and what a way adds is the
median of the differences in a round. Then requests whose endpoint is picked as they arrive are
compared with those that the router holds until a pair is free (choosing_once.py).

    python benchmarks/inference_gateway.py              # both tables, about five minutes
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import choosing_once
import gateway_envoy
import machine
import psutil
import token_cost
from gateway_envoy import Envoy, Way

from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
DIRECT = "no gateway"
STREAMS, TOKENS = 64, 128
LONG = 8_000
"""Words of a long prompt: about as many tokens."""


@dataclass(frozen=True)
class Load:
    """What load.py sends: enough of it that a round takes seconds."""

    streams: int
    requests: int
    tokens: int
    words: int


STREAMING = Load(STREAMS, 3 * STREAMS, TOKENS, 48)
SHORT = Load(1, 150, 2, 48)
LONG_PROMPTS = Load(1, 40, 2, LONG)
FIRST_TOKENS = {"48 tokens": SHORT, f"{LONG:,} tokens": LONG_PROMPTS}


@contextmanager
def picker(*flags: str) -> Iterator[tuple[str, int]]:
    """An endpoint picker: its address and its pid."""
    with ExitStack() as held:
        address = FreePorts(held).address()
    script = ROOT / "benchmarks" / "endpoint_picker.py"
    with subprocess.Popen([sys.executable, script, f"--listen={address}", *flags]) as process:
        try:
            gateway_envoy.wait_for(address, process)
            yield address, process.pid
        finally:
            process.kill()


def generate(address: str, load: Load, *flags: str) -> Mapping[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / "load.py"), "--address", address, *flags]
    for name, value in vars(load).items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result: Mapping[str, Any] = json.loads(done.stdout)
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} of {load.requests} requests failed at {address}")
    return result


@dataclass(frozen=True)
class Gateway:
    """All that is measured: the ways' addresses, and whose CPU is counted."""

    ways: Mapping[str, str]
    processes: Mapping[str, int]
    stack: Stack

    def spent(self) -> dict[str, float]:
        """CPU seconds so far; the frontend's are also those of the process that reads its large
        bodies.
        """
        seconds = {name: machine.cpu_seconds(pid) for name, pid in self.processes.items()}
        frontend = psutil.Process(self.stack.components["frontend"].pid)
        family = (frontend, *frontend.children())
        return {**seconds, "frontend": sum(machine.cpu_seconds(each.pid) for each in family)}

    def round(self, load: Load, way: str) -> dict[str, float]:
        """One load by one way: times in ms, and CPU seconds of each process."""
        before = self.spent()
        result = generate(self.ways[way], load)
        after = self.spent()
        times = {name: result[name] for name in ("ttft_ms_p50", "itl_ms_p50", "itl_ms_p99")}
        return times | {name: after[name] - before[name] for name in before}


WAYS = {
    "Envoy": None,
    "+ picker, head": gateway_envoy.HEADERS,
    "+ picker, body": gateway_envoy.REQUEST,
    "+ picker, answer too": gateway_envoy.WHOLE,
}


@contextmanager
def gateway() -> Iterator[Gateway]:
    with ExitStack() as stack:
        served = stack.enter_context(token_cost.serving(context_length=2**16))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        frontend = served.components["frontend"].address
        asked, picking = stack.enter_context(picker(f"--endpoints={frontend}", "--reads"))
        ways = {
            name: Way(frontend) if sent is None else Way(picker=asked, sent=sent)
            for name, sent in WAYS.items()
        }
        envoy: Envoy = stack.enter_context(gateway_envoy.running(ways, folder))
        addresses = {DIRECT: frontend, **envoy.addresses}
        processes = {"envoy": envoy.pid, "picker": picking}
        yield Gateway(addresses, processes, served)


def medians(rounds: list[dict[str, float]], names: tuple[str, ...]) -> list[float]:
    return [statistics.median(each[name] for each in rounds) for name in names]


def measure(measured: Gateway, load: Load, rounds: int) -> dict[str, list[dict[str, float]]]:
    """`rounds` of each way, in turns."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in measured.ways}
    for number in range(rounds):
        order = list(found)[number % len(found) :] + list(found)[: number % len(found)]
        for way in order:
            found[way].append(measured.round(load, way))
    return found


def added(found: Mapping[str, list[dict[str, float]]], way: str, name: str) -> float:
    pairs = zip(found[way], found[DIRECT], strict=True)
    return statistics.median(here[name] - bare[name] for here, bare in pairs)


def streams_table(found: Mapping[str, list[dict[str, float]]]) -> Iterator[str]:
    tokens = STREAMING.requests * STREAMING.tokens
    yield f"{STREAMS} streams, CPU microseconds for each token, ITL in ms"
    yield f"{'':<22}{'envoy':>8}{'picker':>8}{'frontend':>9}{'itl p50':>9}{'p99':>7}"
    for way, rounds in found.items():
        cpu = [1e6 / tokens * each for each in medians(rounds, ("envoy", "picker", "frontend"))]
        middle, last = medians(rounds, ("itl_ms_p50", "itl_ms_p99"))
        yield f"{way:<22}{cpu[0]:8.1f}{cpu[1]:8.1f}{cpu[2]:9.1f}{middle:9.1f}{last:7.1f}"


def requests_table(
    name: str, load: Load, found: Mapping[str, list[dict[str, float]]]
) -> Iterator[str]:
    yield f"a request of {name} and {load.tokens} of output, alone: CPU ms, TTFT in ms"
    yield f"{'':<22}{'envoy':>8}{'picker':>8}{'frontend':>9}{'ttft':>9}{'added':>7}"
    for way, rounds in found.items():
        cpu = [
            1e3 / load.requests * each for each in medians(rounds, ("envoy", "picker", "frontend"))
        ]
        (ttft,) = medians(rounds, ("ttft_ms_p50",))
        more = added(found, way, "ttft_ms_p50")
        yield f"{way:<22}{cpu[0]:8.2f}{cpu[1]:8.2f}{cpu[2]:9.2f}{ttft:9.2f}{more:+7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("cost", "choices"), help="only this table")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}")
    if options.only != "choices":
        with gateway() as measured:
            for way in measured.ways:
                measured.round(SHORT, way)
            print("", *streams_table(measure(measured, STREAMING, options.rounds)), sep="\n")
            for name, load in FIRST_TOKENS.items():
                found = measure(measured, load, options.rounds)
                print("", *requests_table(name, load, found), sep="\n", flush=True)
    if options.only != "cost":
        print("", *choosing_once.table(), sep="\n")


if __name__ == "__main__":
    main()
