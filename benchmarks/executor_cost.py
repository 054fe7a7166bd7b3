"""What a Python program pays for its answers: through the Executor API, beside HTTP.

Counted is the client's side. Over HTTP that is the frontend and the client. There are three: a
program with the official client that reads every token (`openai_load.py`); `load.py --read`, one
epoll loop that parses each event and takes its text, the least that a program does; and `load.py`,
which counts events and reads none, so it is cheaper than any program. With an executor it is the
one process of the program, `executor_load.py`, which reads every token, so what it takes is held
against the one that reads. Router and workers are the same for all, and left out. All ways go to
one stack, in turn, in changing order; a figure is the median of its rounds, and a ratio that of the
rounds' ratios.

    python benchmarks/executor_cost.py --rounds 3            # about ten minutes
    python benchmarks/executor_cost.py --streams 64
    python benchmarks/executor_cost.py --rows "request, 256"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import machine
import token_cost

from tandem.cli.stack import Stack

STREAMS = (8, 64, 256)
ROUNDS = 5
TARGET = 0.5
"""An executor's share of what HTTP costs with the least program that reads, at most."""
PROGRAMS = token_cost.ROOT / "benchmarks"
COUNTING, READING, OPENAI = "counting", "reading", "openai"
"""The ways of HTTP."""


class Work(NamedTuple):
    """What is asked for, by each way alike."""

    name: str
    unit: str
    streams: int
    requests: int
    tokens: int


class Spent(NamedTuple):
    """CPU microseconds of the client's side for each unit, and the units of a second."""

    client: float
    frontend: float
    rate: float

    @property
    def total(self) -> float:
        return self.client + self.frontend


Way = Callable[[Stack, Work], Spent]


def over_http(measure: Way) -> Way:
    """The frontend's share is added."""

    def both(stack: Stack, work: Work) -> Spent:
        frontend = stack.components["frontend"].pid
        before = machine.cpu_seconds(frontend)
        client = measure(stack, work)
        units = work.requests * (work.tokens if work.unit == "token" else 1)
        used = machine.cpu_seconds(frontend) - before
        return client._replace(frontend=used * 1e6 / units)

    return both


def loop(*flags: str) -> Way:
    """One epoll loop, which counts events or reads them."""

    def measure(stack: Stack, work: Work) -> Spent:
        asked = {"streams": work.streams, "requests": work.requests, "tokens": work.tokens}
        return spent(work, token_cost.generate(stack, *flags, **asked))

    return measure


def program(name: str, *flags: str, address: Callable[[Stack], str]) -> Way:
    """One process, which reads every token."""

    def measure(stack: Stack, work: Work) -> Spent:
        command = [sys.executable, str(PROGRAMS / name), address(stack), *flags]
        for option in ("streams", "requests", "tokens"):
            command += [f"--{option}", str(getattr(work, option))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        result: Mapping[str, float] = json.loads(done.stdout)
        if result["failed"] or result["tokens"] != work.requests * work.tokens:
            raise RuntimeError(f"not all was answered: {result}")
        return spent(work, result)

    return measure


def by_executor(*flags: str) -> Way:
    return program(
        "executor_load.py", *flags, address=lambda stack: stack.components["router"].address
    )


def spent(work: Work, result: Mapping[str, float]) -> Spent:
    units = result["tokens" if work.unit == "token" else "requests"]
    return Spent(result["cpu_seconds"] * 1e6 / units, 0.0, units / result["seconds"])


WAYS: Mapping[str, Way] = {
    COUNTING: over_http(loop()),
    READING: over_http(loop("--read")),
    OPENAI: over_http(program("openai_load.py", address=lambda stack: stack.url)),
    "threads": by_executor(),
    "asyncio": by_executor("--asyncio"),
}


def rounds_of(stack: Stack, work: Work, count: int) -> dict[str, list[Spent]]:
    """What each way took, in each round."""
    found: dict[str, list[Spent]] = {name: [] for name in WAYS}
    for number in range(count):
        names = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
        for name in names:
            found[name].append(WAYS[name](stack, work))
    return found


def lines(work: Work, found: Mapping[str, Sequence[Spent]]) -> list[str]:
    """A line for each way."""
    made = []
    for name, rounds in found.items():
        client, frontend, rate = (median(column) for column in zip(*rounds, strict=True))
        row = (
            f"{work.name:<24} {name:>8} {client:9.1f} {frontend:9.1f}"
            f" {median(each.total for each in rounds):9.1f} {rate:10.0f}"
        )
        if name not in (COUNTING, READING, OPENAI):
            shares = {other: ratios(rounds, found[other]) for other in (OPENAI, COUNTING, READING)}
            row += "".join(f" {median(share):8.2f}" for share in shares.values())
            each = " ".join(f"{ratio:.2f}" for ratio in shares[READING])
            row += f"   {each}" + ("" if median(shares[READING]) <= TARGET else "  ABOVE")
        made.append(row)
    return made


def ratios(own: Sequence[Spent], other: Sequence[Spent]) -> list[float]:
    """What one way took of what another did, in each round."""
    return [mine.total / theirs.total for mine, theirs in zip(own, other, strict=True)]


def works(streams: Sequence[int]) -> list[Work]:
    rows = [
        Work(f"token, {each} streams", "token", each, 4 * each, token_cost.TOKENS)
        for each in streams
    ]
    short = Work("two-token request, 16", "request", 16, 800, 2)
    return [*rows, short, Work("two-token request, 256", "request", 256, 2000, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--streams", type=int, action="append", help="only these (repeatable)")
    parser.add_argument("--rows", default="", help="only rows whose names hold this text")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}; medians of {options.rounds} rounds\n")
    print("CPU microseconds of the client's side for each unit; target: at most half of reading's")
    print(
        f"{'unit, at a time':<24} {'way':>8} {'client':>9} {'frontend':>9} {'total':>9}"
        f" {'a second':>10} {'openai':>8} {'counting':>8} {'reading':>8}   each round"
    )
    with token_cost.serving() as stack:
        warm = Work("", "token", 16, 64, 16)
        for way in WAYS.values():
            way(stack, warm)
        for work in works(options.streams or STREAMS):
            if options.rows not in work.name:
                continue
            print("\n".join(lines(work, rounds_of(stack, work, options.rounds))), flush=True)


if __name__ == "__main__":
    main()
