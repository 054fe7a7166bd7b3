"""Strike real processes under load with faults from a seed: `python tests/chaos/run.py --seed 7`.

Every answer is compared token by token with what the sim engine says when nothing fails. A table
says what came of each kind; the exit status is 1 where an answer was wrong, a request hung, failed
with an error that its kind does not have, or anything was left open.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "e2e")]

from chaotic import table  # noqa: E402 - the path comes first
from chaotic.book import Oracle  # noqa: E402
from chaotic.fleet import ENGINES, EngineOf, Fleet, running  # noqa: E402
from chaotic.kinds import KINDS_OF  # noqa: E402
from chaotic.learnt import Learnt  # noqa: E402
from chaotic.trial import Kind, Row, endure  # noqa: E402
from sim_oracle import Oracle as SimOracle  # noqa: E402


def main() -> None:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    asked = (k for k in KINDS_OF[options.engine] if any(each in k.name for each in options.only))
    kinds = _possible([*asked])
    print(table.head(), flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = options.run_dir or Path(folder)
        engine = ENGINES[options.engine]
        rows = asyncio.run(
            _run(kinds, engine, seed=options.seed, seconds=options.seconds, run_dir=run_dir)
        )
    faults = [f"{row.name}: {fault}" for row in rows for fault in row.faults]
    print(f"{len(rows)} kinds in {time.monotonic() - began:.0f} s")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(f"{len(faults)} faults" if faults else 0)


async def _run(
    kinds: Sequence[Kind], engine: EngineOf, *, seed: int, seconds: float, run_dir: Path
) -> list[Row]:
    """Each kind once, and all again until the time is over."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows = []
    until = time.monotonic() + seconds
    for around in itertools.count():
        for decode, alike in itertools.groupby(kinds, lambda kind: kind.decode):
            async with running(run_dir, engine=engine, decode=decode) as fleet:
                oracle = await _oracle(engine, fleet, seed)
                for kind in alike:
                    row = await endure(kind, fleet, seed=seed + around, oracle=oracle)
                    rows.append(row)
                    print(table.line(row), *row.faults, sep="\n", flush=True)
        if time.monotonic() >= until:
            return rows
    return rows


async def _oracle(engine: EngineOf, fleet: Fleet, seed: int) -> Oracle:
    if engine.name == "sim":
        return SimOracle()
    learnt = Learnt()
    await learnt.learn(fleet.stack.url, seed)
    return learnt


def _possible(kinds: Sequence[Kind]) -> list[Kind]:
    """Those that this machine can have; the others are named."""
    reasons = {kind.name: kind.left_out() for kind in kinds}
    for name, reason in reasons.items():
        if reason:
            print(f"left out: {name}: {reason}", flush=True)
    return [kind for kind in kinds if not reasons[kind.name]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--engine", choices=sorted(KINDS_OF), default="sim")
    parser.add_argument("--only", nargs="+", default=[""], help="kinds with any of it in the name")
    parser.add_argument("--seconds", type=float, default=0.0, help="go round until then; else once")
    parser.add_argument("--run-dir", type=Path, help="where logs stay; else they are deleted")
    return parser.parse_args()


if __name__ == "__main__":
    main()
