"""Compares what a token costs now with what it cost at another commit, with both stacks up at once
and asked in turns of some seconds.

A machine whose speed changes from one minute to the next moves both figures of a turn alike, so
their ratio says more than `against.py` can there. Each round asks the old stack, this checkout's
twice and the old one again, or the other way round, so that neither comes later, nor after itself,
more often than the other. What the old one's two figures of a round differ by is shown too. A stack
that is not asked is idle, and takes little. They are started twice, each of them first once: the
one that was started first takes up to a tenth more, whichever it is.

    python benchmarks/turns.py b383a71 --streams 64 --rounds 6
    python benchmarks/turns.py b383a71 --streams 16 --requests 800 --tokens 2      # by requests
    python benchmarks/turns.py b383a71 --engine sglang --streams 8 --rounds 3      # on the CPU
    python benchmarks/turns.py b383a71 --behind 100000     # a long chat's next turn, by hop
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import machine
from against import ROOT, checkout, import_path

OLD, NEW = "old", "new"
STEP_MS = 10
READY_SECONDS = 600


class Asked:
    """A tree's stack, in a process of its own that is told how much to serve."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def cost(self, *work: int) -> dict[str, float]:
        """By part and in sum: microseconds of CPU a token, where `work` is streams, requests and
        tokens; milliseconds of CPU a turn, where it is how many tokens the turn follows.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*work, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a stack could not be measured")
        found: dict[str, float] = json.loads(line)
        return found


@contextmanager
def asked(tree: Path, engine: str, work: Sequence[int]) -> Iterator[Asked]:
    """The stack of a tree, up and warm."""
    flags = ["--behind", str(work[0])] if len(work) == 1 else []
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(tree), "--engine", engine, *flags],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": import_path(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        stack = Asked(process)
        for _ in range(2):  # of a chat the first turn is all new
            stack.cost(*(work if flags else (8, 16, 32)))
        yield stack
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


@contextmanager
def serving(token_cost: Any, engine: str) -> Iterator[Any]:
    """A stack of the tree that `token_cost` is of."""
    if engine == "sim":
        with token_cost.serving(step_ms=STEP_MS) as stack:
            yield stack
        return
    # The tree's own, which PYTHONPATH names.
    from tandem.cli.plan import StackOptions
    from tandem.cli.stack import Stack

    # Nobody asks for forms, and what compiles them has SGLang in memory.
    forms = 'server_args={"grammar_backend":"none"}'
    options = StackOptions(model_path=token_cost.MODEL, engine=engine, engine_options=(forms,))
    with TemporaryDirectory() as folder, Stack(options, run_dir=Path(folder)) as stack:
        stack.wait_ready(timeout_seconds=READY_SECONDS)
        yield stack


def serve(tree: Path, engine: str) -> None:
    """Answer each line of "streams requests tokens" with what a token of them cost."""
    sys.path.insert(0, str(tree / "benchmarks"))
    import token_cost

    with serving(token_cost, engine) as stack:
        for line in sys.stdin:
            streams, requests, tokens = map(int, line.split())
            before = computed(stack)
            usage, result = token_cost.measure(
                stack, streams=streams, requests=requests, tokens=tokens
            )
            spent = dict(usage.parts)
            for part, seconds in computed(stack).items():
                spent[part] = seconds - before[part]
            spent = {"all": sum(spent.values()), **spent}
            print(json.dumps({k: v * 1e6 / result["tokens"] for k, v in spent.items()}), flush=True)


def computed(stack: Any) -> dict[str, float]:
    """CPU seconds so far of what workers have started: SGLang's schedulers, and none of sim's."""
    return {
        f"{part} engine": sum(map(machine.cpu_seconds, machine.children(component.pid)))
        for name, component in stack.components.items()
        if name.endswith("_worker-0")
        for part in [name.partition("_")[0]]
    }


def serve_turns(tree: Path, engine: str) -> None:
    """Answer each line with what the next turn of a chat of so many tokens cost."""
    sys.path.insert(0, str(tree / "benchmarks"))
    import long_turns

    chats = long_turns.Conversations()
    with long_turns.serving(engine) as stack:
        turns: Iterator[Any] | None = None
        for line in sys.stdin:
            turns = turns or long_turns.turns(chats, int(line))
            messages = next(turns)
            before = long_turns.spent(stack)
            long_turns.Client(stack).ask(messages)
            time.sleep(long_turns.SETTLE_SECONDS)
            row = long_turns.between(before, long_turns.spent(stack))
            print(json.dumps({"all": row.pop("all"), **row}), flush=True)


def rounds(
    trees: Mapping[str, Path], engine: str, work: Sequence[int], *, count: int, first: str
) -> Iterator[tuple[dict[str, float], ...]]:
    """Yields the old tree's two costs of a round, and the new one's two. `first` is started before
    the other.
    """
    with ExitStack() as held:
        stacks = {
            name: held.enter_context(asked(trees[name], engine, work))
            for name in sorted(trees, key=lambda each: each != first)
        }
        for number in range(count):
            order = (OLD, NEW, NEW, OLD) if number % 2 == 0 else (NEW, OLD, OLD, NEW)
            costs = [(name, stacks[name].cost(*work)) for name in order]
            yield tuple(cost for each in (OLD, NEW) for name, cost in costs if name == each)
            print(f"  round {number + 1} of {count} done, {first} first", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=6, help="rounds in each order of starting")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument(
        "--requests", type=int, help="requests of one turn (default: 3 for each stream)"
    )
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of a request")
    parser.add_argument(
        "--behind", type=int, help="instead: turns of 300 new tokens behind so many, one at a time"
    )
    parser.add_argument("--engine", choices=("sim", "sglang"), default="sim")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        (serve_turns if options.behind else serve)(options.serve, options.engine)
        return
    if not options.commit:
        parser.error("which commit?")
    work = [options.streams, options.requests or 3 * options.streams, options.tokens]
    unit, said = "us of CPU a token", "{} streams, {} requests, {} tokens each"
    if options.behind:
        work, unit, said = [options.behind], "ms of CPU a turn", "turns behind {} tokens"
    with checkout(options.commit) as tree:
        rows = [
            row
            for first in (OLD, NEW)
            for row in rounds(
                {OLD: tree, NEW: ROOT}, options.engine, work, count=options.rounds, first=first
            )
        ]
    print(f"machine: {machine.describe()}\nold: {options.commit}, {len(rows)} rounds of")
    print(f"{said.format(*work)}\n")
    print(f"{unit:<18} {'old':>8} {'new':>8} {'new/old':>8} {'old/old':>8}")
    for part in rows[0][0]:
        costs = [[cost[part] for cost in row] for row in rows]
        costs = [row for row in costs if row[1] > 0 and sum(row[:2]) > 0]
        if not costs:
            continue
        ratio = median(sum(row[2:]) / sum(row[:2]) for row in costs)
        spread = median(abs(row[0] / row[1] - 1) for row in costs)
        before, now = (median(sum(row[at : at + 2]) / 2 for row in costs) for at in (0, 2))
        print(f"{part:<18} {before:8.2f} {now:8.2f} {ratio:8.3f} {'±':>3}{spread:5.1%}")


if __name__ == "__main__":
    main()
