"""What clients' keys cost: a stack that asks for none beside one whose clients have a key.

The key has every limit that there is, none of which is reached. How both are measured pairs.py
says.

    python benchmarks/key_cost.py                       # about four minutes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import pairs
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
            print(f"machine: {machine.describe()}\n\n{pairs.header('no key', 'a key')}")
            for name, cost in COSTS.items():
                costs = partial(cost, plain, ""), partial(cost, keyed, KEY)
                print(pairs.row(name, *costs, rounds=options.rounds), flush=True)


if __name__ == "__main__":
    main()
