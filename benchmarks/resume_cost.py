"""What it costs that requests are to be resumed: a stack whose requests ask for nothing beside one
whose frontend asks for all of them, as pairs.py measures two stacks. No worker dies.

    python benchmarks/resume_cost.py                    # about four minutes
"""

from __future__ import annotations

import argparse
from functools import partial

import machine
import pairs
import token_cost

from tandem.cli.stack import Stack

STREAMS = (8, 64, 256)


def token(stack: Stack, streams: int) -> float:
    return float(token_cost.token_cost(stack, streams)["us_per_token"])


def request(stack: Stack) -> float:
    return 1000 * float(token_cost.request_cost(stack)["ms_per_request"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, action="append", help="only these rows (repeatable)")
    options = parser.parse_args()
    flags = {"frontend": ("--resume",)}
    with token_cost.serving() as plain, token_cost.serving(flags=flags) as resuming:
        for stack in (plain, resuming):
            token_cost.generate(stack, streams=16, requests=64, tokens=16)
        print(f"machine: {machine.describe()}\n\n{pairs.header('without', 'resume')}")
        for streams in options.streams or STREAMS:
            name = f"us a token, {streams} streams"
            costs = partial(token, plain, streams), partial(token, resuming, streams)
            print(pairs.row(name, *costs, rounds=options.rounds), flush=True)
        each = partial(request, plain), partial(request, resuming)
        print(pairs.row("us a two-token request", *each, rounds=options.rounds))


if __name__ == "__main__":
    main()
