"""What Tandem costs beside SGLang's own HTTP servers and gateway: the same model in SGLang, with
prefill and decode apart in both, NIXL between them.

Both stacks are up at once and are asked in turns, so that a machine whose speed changes moves both
alike. They are started twice, each of them first once: the one that was started first takes about a
tenth more, whichever it is. Hops are all processes but SGLang's schedulers, which compute the model
in both. Quick: the client acknowledges what it receives at once, for which a server that leaves
Nagle's algorithm on would wait.

    make full && scripts/unpack_wheels.sh sglang-gateway
    python benchmarks/sglang_gateway.py                  # the whole table, about seven minutes
    python benchmarks/sglang_gateway.py --streams 8 --rounds 1 --tokens 16
    python benchmarks/sglang_gateway.py --engine-option device=cuda \\
        --engine-option mem_fraction_static=0.1             # on a GPU that all four workers share
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import psutil
import sglang_servers
import token_cost
from inference_gateway import Load, generate
from sglang_gateway_table import (
    SGLANG,
    TANDEM,
    Row,
    Spent,
    difference,
    hops,
    part_of,
    row,
    table,
    verdict,
)

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_sglang import options as engine_options

Found = dict[str, dict[str, list[Row]]]
STREAMS = (1, 8, 32)
ROUNDS = 2
"""In each of the two orders of starting."""
TOKENS = 64
FEWEST_REQUESTS = 16
DEVICE = "device=cpu"
"""Where no option names another."""
START_SECONDS = 600.0
IDLE_SECONDS = 3.0
SETTLE_SECONDS = 120.0
MOST_IDLE = 0.1
"""The share of a core that a stack may take while nobody asks it."""


@dataclass(frozen=True)
class Side:
    """A stack that is up: where it answers, and its processes' pids by part."""

    address: str
    processes: Mapping[str, int]


def snapshot(side: Side) -> dict[int, Spent]:
    """By pid, of all processes of a stack. Those that end meanwhile are left out."""
    found = {}
    for owner, pid in side.processes.items():
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                title = " ".join(process.cmdline())
                found[process.pid] = Spent(part_of(owner, title), machine.cpu_seconds(process.pid))
            except (psutil.NoSuchProcess, OSError):
                continue
    return found


def measure(side: Side, load: Load, *flags: str) -> Row:
    before = snapshot(side)
    result = generate(side.address, load, *flags)
    return row(difference(before, snapshot(side)), result)


@contextmanager
def both(max_sequences: int, options: Sequence[str], *, first: str) -> Iterator[dict[str, Side]]:
    """The two stacks, each ready for requests. `options` are the engine's, of all four workers, and
    `first` is started before the other.
    """
    starts = {TANDEM: _ours, SGLANG: _theirs}
    sides = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for name in sorted(starts, key=lambda each: each != first):
            sides[name] = stack.enter_context(starts[name](max_sequences, options, folder))
            print(f"  {name}'s stack is ready", file=sys.stderr)
        yield sides


@contextmanager
def _ours(max_sequences: int, options: Sequence[str], folder: Path) -> Iterator[Side]:
    limit = (f"--max-sequences={max_sequences}",)
    asked = StackOptions(
        model_path=token_cost.MODEL,
        engine="sglang",
        engine_options=tuple(options),
        flags={"prefill_worker": limit, "decode_worker": limit},
    )
    with Stack(asked, run_dir=folder) as stack:
        stack.wait_ready(timeout_seconds=START_SECONDS)
        pids = {token_cost.part_of(each): each.pid for each in stack.components.values()}
        yield Side(stack.components["frontend"].address, pids)


@contextmanager
def _theirs(max_sequences: int, options: Sequence[str], folder: Path) -> Iterator[Side]:
    with sglang_servers.running(
        engine_options.parse(dict(each.split("=", 1) for each in options)),
        model=token_cost.MODEL,
        max_sequences=max_sequences,
        folder=folder,
        seconds=START_SECONDS,
    ) as servers:
        yield Side(servers.address, servers.processes)


def check_length(side: Side, tokens: int) -> None:
    """Raises RuntimeError where an answer has not as many tokens as are asked for: the figures of a
    token would be of another number of them.
    """
    message = {"role": "user", "content": "Tell me of a small town."}
    shape = {"model": token_cost.MODEL.name, "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{side.address}/v1/chat/completions",
        json.dumps({**shape, "messages": [message]}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        found = json.load(response)["usage"]["completion_tokens"]
    if found != tokens:
        raise RuntimeError(f"{side.address} answers with {found} tokens, not {tokens}")


def settle(sides: Mapping[str, Side]) -> Iterator[str]:
    """What each stack's hops take of a core while nobody asks it, and so from the other's turns.
    Waits for that to be little, within SETTLE_SECONDS: processes that a stack starts once it is
    ready would be counted as its tokens' cost.
    """
    due = time.monotonic() + SETTLE_SECONDS
    while True:
        before = {name: snapshot(side) for name, side in sides.items()}
        time.sleep(IDLE_SECONDS)
        shares = {
            name: hops(difference(before[name], snapshot(side))) / IDLE_SECONDS
            for name, side in sides.items()
        }
        if max(shares.values()) < MOST_IDLE or time.monotonic() > due:
            break
    for name, share in shares.items():
        yield f"{name} idle: {share:.1%} of a core{'' if share < MOST_IDLE else ', TOO MUCH'}"


def cases(streams: Sequence[int], tokens: int) -> dict[str, tuple[Load, tuple[str, ...]]]:
    """By name, what is sent, and further flags of the load generator."""
    loads = {each: Load(each, max(FEWEST_REQUESTS, 3 * each), tokens, 48) for each in streams}
    plain = {str(each): (load, ()) for each, load in loads.items()}
    quick = {f"{each} quick": (load, ("--quick-ack",)) for each, load in loads.items()}
    return {**plain, **quick}


def run(
    found: Found, sides: Mapping[str, Side], streams: Sequence[int], *, tokens: int, rounds: int
) -> None:
    """Add each case in turns, in an order that changes from round to round."""
    warm = Load(max(streams), 2 * max(streams), tokens, 48)
    for side in sides.values():
        check_length(side, tokens)
        generate(side.address, warm)
    print(*settle(sides), sep="\n", flush=True)
    loads = cases(streams, tokens)
    for number in range(rounds):
        order = sorted(sides, reverse=bool(number % 2))
        for name, (load, flags) in loads.items():
            for side in order:
                row = measure(sides[side], load, *flags)
                found.setdefault(name, {}).setdefault(side, []).append(row)
        print(f"  round {number + 1} of {rounds} is done", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, action="append", help="only these (repeatable)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds in each order of starting"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="output tokens of a request")
    parser.add_argument(
        "--engine-option",
        action="append",
        default=[],
        help="engine option of all four workers (repeatable)",
    )
    parser.add_argument(
        "--first", choices=(TANDEM, SGLANG), action="append", help="only this order of starting"
    )
    options = parser.parse_args()
    streams = options.streams or STREAMS
    sglang_servers.check_installed()
    orders = options.first or (TANDEM, SGLANG)
    print(f"machine: {machine.describe()}; {len(orders) * options.rounds} rounds", flush=True)
    found: Found = {}
    for first in orders:
        with both(2 * max(streams), [DEVICE, *options.engine_option], first=first) as sides:
            print(f"started first: {first}", flush=True)
            run(found, sides, streams, tokens=options.tokens, rounds=options.rounds)
    print("", *table(found), "", *verdict(found), sep="\n")


if __name__ == "__main__":
    main()
