"""What a streamed token costs: CPU of frontend, router, prefill and decode, beside the engine's
own.

The sim engine runs at a step of 10 ms, as a GPU would. Each figure is measured on one machine in
one run; the load generator is a process of its own and is not counted. The engine's own CPU, which
it measures itself, is shown beside and left out of the sum.

    python benchmarks/token_cost.py                     # the whole table, about four minutes
    python benchmarks/token_cost.py --streams 64 --json out.json
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import floor
import load
import machine

from tandem.cli.plan import COMPONENTS, StackOptions
from tandem.cli.stack import Component, Stack

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model" / "tandem-tiny"
TOKENS = 128
STREAMS = (1, 8, 64, 256, 1024)
WORKERS = ("prefill", "decode")
TARGETS = {
    "us_per_token at 64 streams": 30.0,
    "us_per_token at 256 streams": 20.0,
    "cpu ms of a two-token request": 1.2,
    "ttft added, ms": 5.0,
    "saturated tokens/s (at least)": 40_000.0,
    "KiB of an idle stream": 100.0,
}


@dataclass(frozen=True)
class Usage:
    """CPU seconds by component, the engine's share taken out and shown by itself."""

    parts: Mapping[str, float]
    engine: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@contextmanager
def serving(
    *, flags: Mapping[str, tuple[str, ...]] | None = None, **options: float
) -> Iterator[Stack]:
    """A stack with the sim engine and these engine options, ready to be measured. `flags`: more, by
    component.
    """
    engine_options = {"step_ms": 10, **options}
    limit = (f"--max-sequences={2 * max(STREAMS)}",)
    limits = {"prefill_worker": limit, "decode_worker": limit}
    stack_options = StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=tuple(f"{name}={value}" for name, value in engine_options.items()),
        flags={name: (flags or {}).get(name, ()) + limits.get(name, ()) for name in COMPONENTS},
    )
    with TemporaryDirectory() as run_dir, Stack(stack_options, run_dir=Path(run_dir)) as stack:
        stack.wait_ready(timeout_seconds=60)
        yield stack


class Snapshot(NamedTuple):
    """CPU seconds so far: of the parts, and of the engines inside the workers, who are asked and
    pay for the answer themselves. So the parts' clocks are read before and after.
    """

    before: Mapping[str, float]
    engines: Mapping[str, float]
    after: Mapping[str, float]


def snapshot(stack: Stack) -> Snapshot:
    engines = {part: stack.components[f"{part}_worker-0"] for part in WORKERS}
    before = clocks(stack)
    asked = {part: engine_seconds(worker) for part, worker in engines.items()}
    return Snapshot(before, asked, clocks(stack))


def clocks(stack: Stack) -> dict[str, float]:
    """CPU seconds so far by part."""
    return {part_of(each): machine.cpu_seconds(each.pid) for each in stack.components.values()}


def part_of(component: Component) -> str:
    return component.name.partition("_")[0]


def engine_seconds(worker: Component) -> float:
    """The CPU seconds a worker's engine says it used itself."""
    (seconds,) = samples(worker, "tandem_worker_engine_cpu_seconds_total").values()
    return seconds


def samples(component: Component, name: str) -> dict[str, float]:
    """What a component's metrics say under a name, by the labels as they are written."""
    url = f"http://{component.launch.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.M)
    if not found:
        raise LookupError(f"{component.name} exports no {name}")
    return {labels: float(value) for labels, value in found}


def difference(first: Snapshot, last: Snapshot) -> Usage:
    """What was used between two snapshots, and not by asking for them."""
    engine = {part: last.engines[part] - first.engines[part] for part in WORKERS}
    spent = {part: last.before[part] - first.after[part] for part in last.before}
    parts = {part: seconds - engine.get(part, 0.0) for part, seconds in spent.items()}
    return Usage(parts, sum(engine.values()))


def generate(
    stack: Stack, *flags: str, streams: int, requests: int, tokens: int, key: str = ""
) -> Mapping[str, Any]:
    """Run the load generator as a process of its own."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "load.py"),
        "--address",
        stack.url.removeprefix("http://"),
        "--key",
        key,
        *flags,
    ]
    for name, value in (("streams", streams), ("requests", requests), ("tokens", tokens)):
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result: Mapping[str, Any] = json.loads(done.stdout)
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} of {requests} requests failed")
    return result


def measure(
    stack: Stack, *, streams: int, requests: int, tokens: int, key: str = ""
) -> tuple[Usage, Mapping[str, Any]]:
    before = snapshot(stack)
    result = generate(stack, streams=streams, requests=requests, tokens=tokens, key=key)
    return difference(before, snapshot(stack)), result


def token_cost(stack: Stack, streams: int, *, key: str = "") -> dict[str, Any]:
    """A row of the table: microseconds of CPU for each streamed token, in sum and by part."""
    requests = max(4, 4 * streams if streams < 512 else 2 * streams)
    usage, result = measure(stack, streams=streams, requests=requests, tokens=TOKENS, key=key)
    per_token = 1e6 / result["tokens"]
    return {
        "streams": streams,
        "us_per_token": round(usage.total * per_token, 2),
        "parts": {name: round(cpu * per_token, 2) for name, cpu in usage.parts.items()}
        | {"engine": round(usage.engine * per_token, 2)},
        "ttft_ms_p50": round(result["ttft_ms_p50"], 2),
        "itl_ms_p50": round(result["itl_ms_p50"], 2),
        "itl_ms_p99": round(result["itl_ms_p99"], 2),
        "tokens_per_s": round(result["tokens"] / result["seconds"]),
    }


def request_cost(stack: Stack, *, key: str = "") -> dict[str, Any]:
    """CPU milliseconds of a whole request of two tokens, 16 at a time."""
    usage, result = measure(stack, streams=16, requests=1600, tokens=2, key=key)
    per_request = 1e3 / result["requests"]
    return {
        "ms_per_request": round(usage.total * per_request, 3),
        "parts": {name: round(cpu * per_request, 3) for name, cpu in usage.parts.items()}
        | {"engine": round(usage.engine * per_request, 3)},
    }


def added_ttft(stack: Stack) -> float:
    """Milliseconds to the first token of one keep-alive client; the engine needs none of them."""
    return round(float(generate(stack, streams=1, requests=50, tokens=2)["ttft_ms_p50"]), 2)


def saturation() -> dict[str, Any]:
    """Tokens a second when the engine asks for more than the machine can stream."""
    with serving(step_ms=1) as stack:
        generate(stack, streams=64, requests=64, tokens=TOKENS)
        usage, result = measure(stack, streams=256, requests=1024, tokens=TOKENS)
    return {
        "tokens_per_s": round(result["tokens"] / result["seconds"]),
        "us_per_token": round(usage.total * 1e6 / result["tokens"], 2),
    }


def idle_stream_memory(count: int = 512) -> float:
    """KiB over all processes for each open stream that waits for its next token."""
    # Canaries would wait for a step, and no worker would be ready.
    with serving(flags={"router": ("--canary-seconds=0",)}, step_ms=600_000) as stack:
        address = stack.url.removeprefix("http://")
        body = load.request(address, "tandem-tiny", 4, 48, 0)
        host, _, port = address.rpartition(":")
        warm = [_open(host, int(port), body) for _ in range(count)]
        before = total_memory(stack)
        streams = [_open(host, int(port), body) for _ in range(count)]
        after = total_memory(stack)
        for stream in (*warm, *streams):
            stream.close()
    return round((after - before) / count / 1024, 1)


def total_memory(stack: Stack) -> int:
    return sum(machine.memory_bytes(each.pid) for each in stack.components.values())


def _open(host: str, port: int, body: bytes) -> socket.socket:
    """A stream that has its first token and waits for the second."""
    stream = socket.create_connection((host, port))
    stream.settimeout(30)
    stream.sendall(body)
    received = b""
    while load.EVENT not in received:
        received += stream.recv(65536)
    return stream


def table(report: Mapping[str, Any]) -> str:
    names = ("frontend", "router", "prefill", "decode", "engine")
    lines = [f"machine: {report['machine']}", "", "CPU microseconds for each streamed token"]
    lines.append(
        f"{'streams':>8} {'total':>7} {'floor':>7} "
        + " ".join(f"{name:>9}" for name in names)
        + f" {'ttft ms':>8} {'itl ms':>7} {'p99':>7} {'tokens/s':>9}"
    )
    for row in report["rows"]:
        parts = " ".join(f"{row['parts'][name]:9.1f}" for name in names)
        lines.append(
            f"{row['streams']:8d} {row['us_per_token']:7.1f} {row['floor_us']:7.1f} {parts}"
            f" {row['ttft_ms_p50']:8.1f}"
            f" {row['itl_ms_p50']:7.1f} {row['itl_ms_p99']:7.1f} {row['tokens_per_s']:9d}"
        )
    lines.append("total leaves the engine out; floor: two bare gRPC hops and a bare socket write")
    for name, target in TARGETS.items():
        if (value := figures(report).get(name)) is not None:
            lines.append(f"{name:<34} {value:>10.1f}   target {target:g}")
    return "\n".join(lines)


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """The figures that have a target, by its name."""
    found = {
        f"us_per_token at {row['streams']} streams": row["us_per_token"] for row in report["rows"]
    }
    if "request" in report:
        found["cpu ms of a two-token request"] = report["request"]["ms_per_request"]
        found["ttft added, ms"] = report["ttft_added_ms"]
        found["saturated tokens/s (at least)"] = report["saturation"]["tokens_per_s"]
        found["KiB of an idle stream"] = report["idle_stream_kib"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, action="append", help="only these rows (repeatable)")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    options = parser.parse_args()
    bare = floor.measure()
    report: dict[str, Any] = {
        "machine": machine.describe(),
        "tokens": TOKENS,
        "floor": {"message_us": round(bare.message, 1), "write_us": round(bare.write, 1)},
        "rows": [],
    }
    with serving() as stack:
        generate(stack, streams=16, requests=64, tokens=16)
        for streams in options.streams or STREAMS:
            row = token_cost(stack, streams)
            row["floor_us"] = round(bare.per_token(streams), 2)
            report["rows"].append(row)
            print(f"  {streams} streams done", file=sys.stderr)
            time.sleep(0.5)
        if not options.streams:
            report["request"] = request_cost(stack)
            report["ttft_added_ms"] = added_ttft(stack)
    if not options.streams:
        report["saturation"] = saturation()
        report["idle_stream_kib"] = idle_stream_memory()
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
