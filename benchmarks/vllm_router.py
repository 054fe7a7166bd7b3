"""What a token costs of Tandem with vLLM, of Tandem with SGLang, and of `vllm serve` for prefill
and decode behind vLLM's own router: the same model, KV by NIXL in all of them, on the CPU.

One stack is up at a time, and is started anew for each round, in an order that changes. Hops are
all processes but the engines', which compute the model: SGLang's schedulers and vLLM's EngineCore.
A client acknowledges what it receives at once.

    make full vllm && scripts/unpack_wheels.sh vllm-router
    python benchmarks/vllm_router.py     # the whole table: 39 minutes on two busy cores
    python benchmarks/vllm_router.py --rounds 1 --streams 8 --tokens 16 --stack vLLM
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import token_cost
import vllm_servers
from inference_gateway import Load, generate
from sglang_gateway import (
    FEWEST_REQUESTS,
    START_SECONDS,
    STREAMS,
    TOKENS,
    Side,
    check_length,
    measure,
    settle,
)
from sglang_gateway_table import HOPS, Row

from tandem.cli import run_state

OPTIONS = ("dtype=float32",)
"""Of all engines. vLLM ends by SIGILL where a small model begins with few tokens in bfloat16."""
OURS, BESIDE, THEIRS = "Tandem, vLLM", "Tandem, SGLang", "vLLM"
ROUNDS = 3
Found = dict[int, dict[str, list[Row]]]
"""By streams and stack, its rows, one a round."""


@contextmanager
def tandem(engine: str, python: Path, max_sequences: int, *options: str) -> Iterator[Side]:
    """A stack of Tandem's in the environment of `python`, ready for requests."""
    with TemporaryDirectory() as folder:
        command, quiet = [str(python), "-m", "tandem.cli"], subprocess.DEVNULL
        place = ["--run-dir", folder]
        start = ["up", "--detach", "--port", "0", "--engine", engine, *place]
        start += ["--model-path", str(token_cost.MODEL)]
        for option in (*OPTIONS, *options):
            start += ["--engine-option", option]
        env = {**os.environ, "TANDEM_MAX_SEQUENCES": str(max_sequences)}
        try:
            subprocess.run(command + start, env=env, stdout=quiet, check=True)
            state = run_state.read(Path(folder))
            if state is None:
                raise RuntimeError(f"{folder} says nothing of the stack")
            pids = {name.partition("_")[0]: each.pid for name, each in state.processes.items()}
            yield Side(state.url.removeprefix("http://"), pids)
        finally:
            subprocess.run([*command, "down", *place], stdout=quiet, check=False)


@contextmanager
def vllm(max_sequences: int) -> Iterator[Side]:
    with (
        TemporaryDirectory() as folder,
        vllm_servers.running(
            OPTIONS,
            model=token_cost.MODEL,
            max_sequences=max_sequences,
            folder=Path(folder),
            seconds=START_SECONDS,
        ) as servers,
    ):
        yield Side(servers.address, servers.processes)


STACKS: Mapping[str, Callable[[int], AbstractContextManager[Side]]] = {
    OURS: lambda most: tandem("vllm", vllm_servers.PYTHON, most),
    BESIDE: lambda most: tandem("sglang", Path(sys.executable), most, "device=cpu"),
    THEIRS: vllm,
}


def add_round(found: Found, name: str, streams: Sequence[int], tokens: int) -> None:
    """Start a stack, measure each number of streams, and stop the stack."""
    with STACKS[name](2 * max(streams)) as side:
        check_length(side, tokens)
        generate(side.address, Load(max(streams), 2 * max(streams), tokens, 48))
        print(f"  {name}:", *settle({name: side}), file=sys.stderr)
        for each in streams:
            load = Load(each, max(FEWEST_REQUESTS, 3 * each), tokens, 48)
            row = measure(side, load, "--quick-ack")
            found.setdefault(each, {}).setdefault(name, []).append(row)


def middle(rows: Sequence[Row]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def table(found: Found) -> Iterator[str]:
    """CPU of each part, and of Tandem with vLLM by that of each other stack."""
    yield "CPU microseconds a token, medians; ratio: Tandem with vLLM by it, hops and all"
    names = ("hops", *HOPS, "engine")
    yield f"{'streams':<9}{'':<16}" + "".join(f"{name:>12}" for name in (*names, "all", "ratio"))
    for streams, stacks in found.items():
        ours = middle(stacks[OURS]) if OURS in stacks else None
        for name, rows in stacks.items():
            row = middle(rows)
            whole = row["hops"] + row["engine"]
            figures = "".join(f"{row[part]:12.1f}" for part in names) + f"{whole:12.1f}"
            if ours is not None:
                every = (ours["hops"] + ours["engine"]) / whole
                figures += f"   {ours['hops'] / row['hops']:.2f} {every:.2f}"
            yield f"{streams:<9}{name:<16}{figures}"


def spreads(found: Found) -> Iterator[str]:
    """Each round's hops and engines, for who wants to see how far the rounds differ."""
    for streams, stacks in found.items():
        for name, rows in stacks.items():
            said = "  ".join(f"{row['hops']:.0f}+{row['engine']:.0f}" for row in rows)
            yield f"{streams:<9}{name:<16}hops + engine by round: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, action="append", help="only these (repeatable)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="starts of each stack")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="output tokens of a request")
    parser.add_argument("--stack", choices=STACKS, action="append", help="only this (repeatable)")
    options = parser.parse_args()
    vllm_servers.check_installed()
    names = options.stack or list(STACKS)
    print(f"machine: {machine.describe()}; {options.rounds} rounds", flush=True)
    found: Found = {}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            add_round(found, name, options.streams or STREAMS, options.tokens)
        print(f"  round {number + 1} of {options.rounds} is done", file=sys.stderr)
    print("", *table(found), "", *spreads(found), sep="\n")


if __name__ == "__main__":
    main()
