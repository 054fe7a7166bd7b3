"""What mutual TLS between the components adds to a streamed token.

Two stacks stand side by side, one of them with TLS on its gRPC, and are measured in turn, several
rounds of each. A figure is the median of its rounds; what TLS adds is the difference in a round.
One certificate serves all components; docs/security.md says how it is made.

    python benchmarks/tls_cost.py --cert tls.crt --key tls.key --ca ca.crt     # about three minutes
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import machine
import token_cost

from tandem.cli.plan import COMPONENTS
from tandem.cli.stack import Stack

STREAMS = (1, 8, 64, 256)
ROUNDS = 5


def micros(stack: Stack, streams: int) -> float:
    return float(token_cost.token_cost(stack, streams)["us_per_token"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("cert", "key", "ca"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="PEM file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--streams", type=int, action="append", help="only these rows (repeatable)")
    options = parser.parse_args()
    files = tuple(f"--tls-{name}={getattr(options, name)}" for name in ("cert", "key", "ca"))
    flags = dict.fromkeys(COMPONENTS, files)
    print(f"machine: {machine.describe()}\n\nCPU microseconds for each streamed token")
    print(f"{'streams':>8} {'plain':>7} {'TLS':>7} {'added':>7}   each round")
    with token_cost.serving() as plain, token_cost.serving(flags=flags) as secured:
        for stack in (plain, secured):
            token_cost.generate(stack, streams=16, requests=64, tokens=16)
        for streams in options.streams or STREAMS:
            rounds = [
                (micros(plain, streams), micros(secured, streams)) for _ in range(options.rounds)
            ]
            added = [tls - bare for bare, tls in rounds]
            bare, tls = (statistics.median(column) for column in zip(*rounds, strict=True))
            each = " ".join(f"{value:+.1f}" for value in added)
            print(f"{streams:8d} {bare:7.1f} {tls:7.1f} {statistics.median(added):+7.1f}   {each}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
