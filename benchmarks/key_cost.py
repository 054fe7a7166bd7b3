"""What clients' keys cost: a stack that asks for none beside one whose clients have a key.

Both stand side by side and are measured in turn, several rounds of each, in changing order. The key
has every limit that there is, none of which is reached. A figure is the median of its rounds; what
a key adds is the difference in a round. The stack without keys is measured twice a round, so that
its difference to itself says how much the machine alone moves a figure.

    python benchmarks/key_cost.py                       # about four minutes
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import token_cost

from tandem.cli.stack import Stack
from tandem.keys.ring import digest_of

STREAMS = 64
KEY = "tandem-benchmark"
LIMITS = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 1_000_000_000,
    "open_requests": 100_000,
    "max_n": 10,
    "models": ["tandem-tiny"],
}
Cost = Callable[[Stack, str], float]
COSTS: dict[str, Cost] = {
    f"us a token, {STREAMS} streams": lambda stack, key: float(
        token_cost.token_cost(stack, STREAMS, key=key)["us_per_token"]
    ),
    "us a two-token request": lambda stack, key: (
        1000 * float(token_cost.request_cost(stack, key=key)["ms_per_request"])
    ),
}


def rounds_of(cost: Cost, plain: Stack, keyed: Stack, count: int) -> list[tuple[float, ...]]:
    """Without a key, with one, and without again, in each round."""
    found = []
    for number in range(count):
        first = cost(plain, "") if number % 2 == 0 else None
        with_key = cost(keyed, KEY)
        if first is None:
            first = cost(plain, "")
        found.append((first, with_key, cost(plain, "")))
    return found


def row(name: str, rounds: list[tuple[float, ...]]) -> str:
    plain, keyed = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:2])
    ratios = [new / ((old + again) / 2) for old, new, again in rounds]
    spread = max(abs(again / old - 1) for old, _, again in rounds)
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    return (
        f"{name:<26} {plain:8.1f} {keyed:8.1f} {statistics.median(ratios):8.3f} {spread:8.1%}"
        f"   {each}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.jsonl"
        grant = {"name": "benchmark", "sha256": digest_of(KEY.encode()), **LIMITS}
        keys.write_text(json.dumps(grant))
        flags = {"frontend": (f"--api-keys-file={keys}",)}
        with token_cost.serving() as plain, token_cost.serving(flags=flags) as keyed:
            for stack, key in ((plain, ""), (keyed, KEY)):
                token_cost.generate(stack, streams=16, requests=64, tokens=16, key=key)
            print(f"machine: {machine.describe()}\n")
            print(f"{'':<26} {'no key':>8} {'a key':>8} {'ratio':>8} {'spread':>8}   each round")
            for name, cost in COSTS.items():
                print(row(name, rounds_of(cost, plain, keyed, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
