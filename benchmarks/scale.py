"""What a router's decisions cost with many workers: the real core, in virtual time, without I/O.

Half of the workers are prefill, half decode, all of one group, with 64 slots each. Workers come up
one after the other; then a third of the slots is taken, unevenly, and single events are measured.
Then all slots are taken and 4,000 sequences wait. A figure is CPU time, the least of the rounds:
what else the machine does only adds.

    python benchmarks/scale.py                          # about two minutes
    python benchmarks/scale.py --sizes 200 --policy round_robin
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import time
from array import array
from collections.abc import Iterable, Sized
from pathlib import Path

import machine

from tandem.endings import Outcome
from tandem.prefix_blocks import BLOCK_TOKENS, Blocks
from tandem.v1 import router_pb2, worker_pb2
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.sequences import Leg, Sequence
from tandem_router.core.values import Bounds, Fingerprint, Needs, Phase, Profile
from tandem_router.core.worker import Worker
from tandem_router.policies import POLICIES, Prompt

SIZES = (10, 200, 1_000, 2_000)
SLOTS = 64
WAITING = 4_000
KINDS = 500
"""How many prompts there are; those of a kind have most of their tokens in common."""
BATCH = 40
"""Events that are measured at once."""
FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
ROWS = (
    "a request: submit to both legs started",
    "of that the choice of its pair",
    "a request: its start and both its ends",
    "a load report, nothing waits",
    "a load report that frees nothing, 4,000 wait",
    "a slot becomes free and is taken, 4,000 wait",
    "a worker goes down",
    "a worker comes up",
    "all workers come up, for each",
    "a snapshot for a scrape",
)


def worker_up(
    index: int, *, prefill_slots: int = SLOTS, decode_slots: int = SLOTS
) -> events.WorkerUp:
    """Every second worker is of prefill."""
    phase = Phase.PREFILL if index % 2 else Phase.DECODE
    key = f"10.0.{index // 250}.{index % 250}:7100"
    profile = Profile(
        name=f"{phase}-{index}",
        phase=phase,
        fingerprint=FINGERPRINT,
        max_sequences=prefill_slots if phase is Phase.PREFILL else decode_slots,
        context_length=8192,
        kv_endpoint=f"kv-{key}",
    )
    return events.WorkerUp(worker=key, listed_as=phase, profile=profile)


def submit(
    number: int,
    chance: random.Random,
    task: bytes = b"task",
    prompt_tokens: int = 0,
    prompt_blocks: Blocks = (),
) -> events.Submit:
    """A request of one sequence, of that number."""
    message = router_pb2.Submit(
        first_sequence=number,
        n=1,
        model="tiny",
        tokenizer_sha256="sha",
        timeout_ms=10**9,
        prompt_tokens=prompt_tokens,
        trace_id=f"{chance.getrandbits(128):032x}",
        weight=1,
    )
    return events.Submit(1, message, task, prompt_blocks)


class Bench:
    """A core with one frontend; time goes on by a millisecond an event."""

    def __init__(self, workers: int, policy: str) -> None:
        self.core = RouterCore(
            bounds=Bounds(max_queue=1_000_000),
            prefill_policy=POLICIES[policy],
            decode_policy=POLICIES["least_loaded" if policy == "prefix" else policy],
            new_room=itertools.count(1).__next__,
        )
        self.now = 0.0
        self.chance = random.Random(1)
        self._first = itertools.count(1)
        self.ups = [worker_up(index) for index in range(workers)]
        self.feed(events.FrontendUp(1))

    def feed(self, event: events.Event) -> list[actions.Action]:
        self.now += 0.001
        return self.core.handle(self.now, (event,))

    def timed(self, batch: Iterable[events.Event]) -> tuple[float, list[actions.StartLeg]]:
        """Seconds of CPU that a batch of events takes, each by itself, and the legs it started."""
        given, done = list(batch), []
        gc.collect()
        began = time.process_time_ns()
        for event in given:
            done += self.feed(event)
        seconds = (time.process_time_ns() - began) / 1e9
        return seconds, [each for each in done if isinstance(each, actions.StartLeg)]

    def choices(self, count: int) -> float:
        """Seconds of CPU that it takes to choose a pair so often, and to start nothing there."""
        fleet, needs = self.core.state.fleet, Needs()
        prompts = [
            Prompt.of(each.message, len(each.task), each.prompt_blocks, request=0)
            for each in self.submits(count)
        ]
        (edition,) = fleet.editions
        began = time.process_time_ns()
        for each in prompts:
            fleet.pick(edition, needs, each, other_than=None, now=0.0)
        return (time.process_time_ns() - began) / 1e9

    def snapshot(self) -> float:
        """Seconds of CPU that one takes."""
        began = time.process_time_ns()
        self.core.snapshot()
        return (time.process_time_ns() - began) / 1e9

    def submits(self, count: int) -> list[events.Submit]:
        chance = self.chance
        lengths = [chance.randint(1, 8_000) for _ in range(count)]
        return [
            submit(
                next(self._first), chance, prompt_tokens=each, prompt_blocks=_blocks(chance, each)
            )
            for each in lengths
        ]

    def loads(self, count: int, *, full: bool = False) -> list[events.WorkerLoad]:
        """Reports of workers: what runs there, and maybe a leg of another router; or all slots."""
        workers = self.chance.choices(list(self.core.state.fleet.workers.values()), k=count)
        taken = [SLOTS if full else len(each.legs) + self.chance.randrange(2) for each in workers]
        return [_load(each, n) for each, n in zip(workers, taken, strict=True)]

    def streams(self) -> list[Sequence]:
        """Those that run on both sides, in random order."""
        sequences = {leg.sequence for leg in self.core.state.legs.values() if leg.sequence.decode}
        found = sorted(sequences, key=lambda each: each.number)
        self.chance.shuffle(found)
        return found


def _blocks(chance: random.Random, tokens: int) -> Blocks:
    """Those of a prompt that shares 1,000 tokens with all, and all but its end with some."""
    count, kind = tokens // BLOCK_TOKENS, chance.randrange(KINDS)
    shared = range(1, 1 + 1_000 // BLOCK_TOKENS)
    own = range(1_000 * (1 + kind), 1_000 * (1 + kind) + count)
    last = [chance.getrandbits(64) for _ in range(count // 8)]
    return array("Q", [*shared, *own[len(shared) : count - len(last)], *last][:count])


def ends(streams: Iterable[Sequence]) -> list[events.Event]:
    """What workers say until those have ended."""
    said: list[events.Event] = []
    for each in streams:
        if each.prefill is not None:
            said.append(_closed(each.prefill))
        if each.decode is not None:
            said.append(events.LegStarted(each.decode.worker.key, each.decode.number))
            said.append(_closed(each.decode))
    return said


def _load(worker: Worker, legs: int) -> events.WorkerLoad:
    """With 1,000 tokens for each leg of another router."""
    tokens = worker.tokens + 1_000 * (legs - len(worker.legs))
    load = worker_pb2.Load(
        open_legs=legs,
        prompt_tokens=tokens,
        kv_tokens_used=tokens,
        kv_tokens_total=SLOTS * 8_000,
    )
    return events.WorkerLoad(worker.key, load)


def _closed(leg: Leg) -> events.LegClosed:
    return events.LegClosed(leg.worker.key, leg.number, Outcome.FINISHED)


def measured(workers: int, policy: str, rounds: int) -> dict[str, float]:
    """Microseconds of each row of the table."""
    bench = Bench(workers, policy)
    found: dict[str, list[float]] = {name: [] for name in ROWS}

    def note(row: int, batch: Sized, seconds: float) -> None:
        found[ROWS[row]].append(seconds * 1e6 / len(batch))

    note(8, bench.ups, bench.timed(bench.ups)[0])
    bench.timed(bench.submits(workers * SLOTS // 6))
    bench.timed(ends(bench.streams()[: workers * SLOTS // 24]))
    for _ in range(rounds):
        submits = bench.submits(BATCH)
        known = set(bench.core.state.legs)
        starting, _ = bench.timed(submits)
        note(0, submits, starting)
        mine = [each for each in bench.streams() if each.decode.number not in known]
        note(1, submits, bench.choices(len(submits)))
        note(2, submits, starting + bench.timed(ends(mine))[0])
        loads = bench.loads(BATCH)
        note(3, loads, bench.timed(loads)[0])
        ups = bench.chance.sample(bench.ups, min(10, workers // 5))
        ended = _empty(bench, {each.worker for each in ups})
        downs = [events.WorkerDown(each.worker, "gone", died=False) for each in ups]
        note(6, ups, bench.timed(downs)[0])
        note(7, ups, bench.timed(ups)[0])
        bench.timed(bench.submits(ended))
        note(9, (1,), bench.snapshot())
    for each in bench.ups:
        bench.feed(events.WorkerLoad(each.worker, worker_pb2.Load(open_legs=SLOTS)))
    bench.timed(bench.submits(WAITING))
    for _ in range(rounds):
        loads = bench.loads(BATCH, full=True)
        note(4, loads, bench.timed(loads)[0])
        freed = bench.streams()[:BATCH]
        note(5, freed, bench.timed(ends(freed))[0])
    return {name: min(values) for name, values in found.items()}


def _empty(bench: Bench, workers: set[str]) -> int:
    """Let what runs there end, and nothing new begin. Returns how many streams that were."""
    for each in workers:
        bench.feed(events.WorkerDraining(each, True))
    there = [
        each
        for each in bench.streams()
        if workers & {leg.worker.key for leg in (each.prefill, each.decode) if leg is not None}
    ]
    bench.timed(ends(there))
    return len(there)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--policy", choices=[*POLICIES], default="least_loaded")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="where the table goes, for scale_plots.py")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}; {options.policy}\n")
    table = {size: measured(size, options.policy, options.rounds) for size in options.sizes}
    if options.json:
        options.json.write_text(json.dumps(table), encoding="utf-8")
    print(f"{'us of CPU':<46}" + "".join(f"{size:>9,}" for size in table) + "    ratio")
    first, last = options.sizes[0], options.sizes[-1]
    for name in ROWS:
        values = "".join(f"{table[size][name]:9.1f}" for size in table)
        print(f"{name:<46}{values} {table[last][name] / table[first][name]:8.1f}")


if __name__ == "__main__":
    main()
