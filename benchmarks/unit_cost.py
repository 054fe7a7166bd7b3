"""What each unit of the SGLang kit takes: CPU of the workers and of SGLang's schedulers, by the
unit whose code runs, for tokens that are greedy, drawn, penalised, bound by a form and edited by a
processor, and for hand-overs.

A pair of workers runs SGLang on the CPU. Each of their processes notes every few milliseconds of
its CPU time whose code runs (unit_watch), so that units cost what they are seen to take in one run,
and no two runs are compared. What a unit saves is not in it: for that, `--without` starts the pair
without some units, or without `every`, and the totals of two runs are compared.

    python benchmarks/unit_cost.py                      # on the CPU, about five minutes
    python benchmarks/unit_cost.py --without every
    python benchmarks/unit_cost.py --without outputs --only greedy
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine
import sglang_steps
import token_cost

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_sglang.units import UNITS

HERE = Path(__file__).resolve().parent
STREAMS, TOKENS = 8, 64
ALLOWED = "--client-logits-processors=no_repeat_ngram"
LOADS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.1},
    "form": {"temperature": 0.0, "guided_regex": "[a-z ]{500}", "ignore_eos": False},
    "processor": {
        "temperature": 0.0,
        "logits_processors": [{"name": "no_repeat_ngram", "args": {"size": 2}}],
    },
    "hand-over": {"temperature": 0.0, "max_tokens": 2},
}
"""What requests ask for. A hand-over's figures are for a request, the others for a token."""
REFUSED = {
    "drawn": "seeds",
    "penalised": "penalties",
    "form": "forms",
    "processor": "histories",
}
"""The unit without which a load is refused."""
BESIDE = ("ranks", "tensors", "rows", "processor", "scheduler")
"""Modules that several units use, or none."""


def owners() -> dict[str, str]:
    """The unit that each module of the kit belongs to, which schedulers or a worker run for it."""
    found = {
        "inbox": "outputs",
        "outputs": "outputs",
        "output_socket": "outputs",
        "token_sockets": "outputs",
        "drawing": "seeds",
        "grammars": "forms",
        "guidance": "forms",
        "failures": "failures",
        "hand_over_tags": "hand-over tags",
    }
    for unit in UNITS:
        for name in (*unit.put, *(part for _, part in unit.parts)):
            found.setdefault(name.partition(":")[0], unit.name)
    return found


@contextmanager
def pair(without: str, folder: Path) -> Iterator[Stack]:
    """A pair whose processes note in `folder` whose code they run."""
    paths = [HERE / "unit_watch", HERE.parent / "tests" / "e2e", os.getenv("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    os.environ |= {"UNIT_WATCH": str(folder), "LACKING_UNITS": without}
    worker = (f"--max-sequences={STREAMS}", "--logits-processors=taken=units_taken_away:Loads")
    flags = {"frontend": (ALLOWED,), "router": (ALLOWED,)}
    options = StackOptions(
        model_path=token_cost.MODEL,
        engine="sglang",
        flags=flags | dict.fromkeys(("prefill_worker", "decode_worker"), worker),
    )
    with TemporaryDirectory() as run_dir, Stack(options, run_dir=Path(run_dir)) as stack:
        stack.wait_ready(timeout_seconds=900)
        yield stack


def load(stack: Stack, name: str, requests: int) -> None:
    fields = {"max_tokens": TOKENS, **LOADS[name]}
    with ThreadPoolExecutor(STREAMS) as threads:
        asked = [threads.submit(sglang_steps.ask, stack, **fields) for _ in range(requests)]
    for each in asked:
        if isinstance(error := each.exception(), urllib.error.HTTPError):
            raise RuntimeError(f"a request of {name} failed: {error.read().decode()}")
        each.result()


class Seen:
    """CPU seconds of a pair's processes so far: all, and of what was looked at, whose code ran."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.all: dict[str, float] = {}
        self.looked: dict[str, Counter[str]] = {}
        for part in token_cost.WORKERS:
            worker = stack.components[f"{part}_worker-0"].pid
            for name, pids in ((part, [worker]), (f"{part} engine", machine.children(worker))):
                self.all[name] = sum(map(machine.cpu_seconds, pids))
                notes = (folder / f"{pid}.json" for pid in pids)
                self.looked[name] = Counter()
                for note in notes:
                    if note.exists():
                        self.looked[name] += Counter(json.loads(note.read_text())["seconds"])


def between(first: Seen, last: Seen, count: int) -> dict[str, dict[str, float]]:
    """Microseconds of each of so many, by process and by whose code ran: of a process's own clock
    the share that its looks say.
    """
    found = {}
    for process, seconds in last.all.items():
        looks = last.looked[process] - first.looked[process]
        share = (seconds - first.all[process]) / (looks.total() or 1) * 1e6 / count
        found[process] = {whose: value * share for whose, value in looks.items()}
    return found


def by_unit(seen: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """In all processes together: each unit, the modules beside, what else of Tandem, the rest."""
    of = owners()
    found: Counter[str] = Counter()
    for process, modules in seen.items():
        for module, value in modules.items():
            if module in of:
                found[of[module]] += value
            elif module in BESIDE:
                found["rows that processors edit"] += value
            elif module in ("sglang", ""):
                kind = "SGLang's" if process.endswith("engine") else "its part in a worker"
                found[f"SGLang, torch: {kind}"] += value
            else:
                found["the workers' own"] += value
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without", default="", help="units that are lacking, by comma, or every")
    parser.add_argument("--only", action="append", choices=LOADS, help="loads (repeatable)")
    parser.add_argument("--requests", type=int, default=192, help="of each load")
    options = parser.parse_args()
    lacking = (
        {unit.name for unit in UNITS}
        if options.without == "every"
        else set(options.without.split(","))
    )
    names = [name for name in options.only or LOADS if REFUSED.get(name, name) not in lacking]
    columns: dict[str, dict[str, float]] = {}
    print(f"machine: {machine.describe()}\nwithout: {options.without or 'nothing'}\n")
    with TemporaryDirectory() as notes, pair(options.without, Path(notes)) as stack:
        for name in names:
            load(stack, name, STREAMS)
            before = Seen(stack, Path(notes))
            load(stack, name, options.requests)
            time.sleep(0.5)
            hands_over = name == "hand-over"
            count = options.requests * (1 if hands_over else TOKENS)
            columns[name] = by_unit(between(before, Seen(stack, Path(notes)), count))
            print(f"  {name} done: {json.dumps(columns[name])}", file=sys.stderr)
    print(table(columns))


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Figures by row and column, in Markdown, and the sum of each column."""
    rows = sorted({row for column in columns.values() for row in column})
    lines = [f"| µs of CPU | {' | '.join(columns)} |", "|" + " --- |" * (len(columns) + 1)]
    for row in rows:
        cells = (f"{column.get(row, 0.0):.1f}" for column in columns.values())
        lines.append(f"| {row} | {' | '.join(cells)} |")
    sums = (f"{sum(column.values()):.0f}" for column in columns.values())
    return "\n".join([*lines, f"| all | {' | '.join(sums)} |"])


if __name__ == "__main__":
    main()
