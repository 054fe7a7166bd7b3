"""What the choice of a pair costs by every policy: the real core, in virtual time, without I/O.

Workers are those of scale.py: half of them prefill, half decode, a third of the slots taken,
unevenly, and prompts that have beginnings in common. Then the same with aggregated workers beside,
a fourth of the whole, so that a choice is one of ways, too: both ways are measured and in use, and
there are prompts in the caches of either. And with legs of other routers on them.
A figure is microseconds of CPU, the least of the rounds: what else the machine does only adds.

    python benchmarks/choices.py                        # about two minutes
    python benchmarks/choices.py --sizes 200 --policies prefix
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace

import machine
import scale
from scale import Bench

from tandem.wire import faces
from tandem_router.core import actions, events
from tandem_router.core.values import Phase
from tandem_router.policies import POLICIES

SIZES = (200, 2_000)
MOST = {200: 60.0, 2_000: 120.0}
"""Microseconds that a choice may take, by workers."""
AGGREGATED_SHARE = 4
TOKEN_SECONDS, HANDOVER_SECONDS = 50e-6, 0.1
"""What a prompt takes in virtual time until its first token: for each of its tokens, and in a pair.
"""


def aggregated_ups(index: int) -> list[events.WorkerUp]:
    """What routers are told of both phases of an aggregated worker."""
    up = scale.worker_up(index)
    fingerprint = scale.FINGERPRINT._replace(aggregated=True)
    found = []
    for phase in Phase:
        key = faces.key(up.worker, phase)
        profile = replace(
            up.profile,
            phase=phase,
            fingerprint=fingerprint,
            instance=up.worker,
            kv_endpoint=f"kv-{key}",
        )
        found.append(events.WorkerUp(worker=key, listed_as=phase, profile=profile))
    return found


def ups(workers: int, *, aggregated: bool) -> list[events.WorkerUp]:
    """Those of pairs, and maybe in the place of a fourth of them aggregated ones."""
    pairs = workers - workers // AGGREGATED_SHARE * aggregated
    whole = [aggregated_ups(index) for index in range(pairs, workers)]
    return [*map(scale.worker_up, range(pairs)), *itertools.chain.from_iterable(whole)]


def fill(bench: Bench, count: int) -> None:
    """Start so many requests, and say of each that its first token has come."""
    for submit in bench.submits(count):
        for each in bench.feed(submit):
            if isinstance(each, actions.StartLeg) and each.command.kv_peer:
                aggregated = bench.core.state.fleet.workers[each.worker].aggregated
                bench.now += TOKEN_SECONDS * submit.prompt_tokens
                bench.now += 0.0 if aggregated else HANDOVER_SECONDS
                bench.feed(events.LegStarted(each.worker, each.leg))


def measured(workers: int, policy: str, rounds: int, *, aggregated: bool, shared: bool) -> float:
    """How many microseconds a choice takes."""
    bench = Bench(workers, policy)
    bench.ups = ups(workers, aggregated=aggregated)
    for each in bench.ups:
        bench.feed(each)
    fill(bench, workers * scale.SLOTS // 6)
    bench.timed(scale.ends(bench.streams()[: workers * scale.SLOTS // 24]))
    if shared:
        bench.timed(bench.loads(2 * workers))
    return min(bench.choices(scale.BATCH) for _ in range(rounds)) * 1e6 / scale.BATCH


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--policies", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    print(f"machine: {machine.describe()}")
    print(f"{'us of CPU a choice':<58}" + "".join(f"{size:>9,}" for size in options.sizes))
    dear = 0
    for policy, aggregated, shared in itertools.product(
        options.policies, (False, True), (False, True)
    ):
        took = {
            size: measured(size, policy, options.rounds, aggregated=aggregated, shared=shared)
            for size in options.sizes
        }
        dear += sum(took[size] > most for size, most in MOST.items() if size in took)
        ways = "pairs and aggregated" if aggregated else "pairs"
        name = f"{policy}, {ways}, {'several routers' if shared else 'one router'}"
        print(f"{name:<58}" + "".join(f"{took[size]:9.1f}" for size in options.sizes), flush=True)
    said = "more" if dear else "no more"
    print(f"choices take {said} than {MOST[200]:g} us at 200 workers and {MOST[2_000]:g} at 2,000")
    return 1 if dear else 0


if __name__ == "__main__":
    raise SystemExit(main())
