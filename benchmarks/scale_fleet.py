"""What several routers make of one large fleet: their real cores, in virtual time, without I/O.

Requests come at random times to all routers alike, run 0.2 s on a prefill worker and half a minute
on a decode worker, each with its own chance. Each worker tells each router once a second what it
has, and earlier where much has changed (--early-reports); until then a router does not know what
others have started there, and a worker that has no slot left refuses. With --prefill-load a prefill
worker computes one prompt after the other, of different lengths, at such a speed that so large a
share of its time is taken. When as many streams are open as were asked for, a minute of steady load
is measured, in whose middle one router dies and its clients come again to the others.

With --decode-routers each decode worker is served by so many of the routers, as with the setting of
that name; a dead router's share is taken over after two seconds. A decode worker sends a frame a
step to each router that it runs something for; these are counted, not made.

    python benchmarks/scale_fleet.py                      # about five minutes, and 2 GiB
    python benchmarks/scale_fleet.py --routers 1 2 4 8 --decode-routers 2
    python benchmarks/scale_fleet.py --workers 200 --routers 1 2 4 8 16 --streams 10000
    python benchmarks/scale_fleet.py --workers 200 --routers 1 8 --streams 1280 --prefill-load 0.8
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import log
from pathlib import Path
from statistics import mean, median

import machine
from scale import submit, worker_up

from tandem.endings import Outcome
from tandem.errors import QueueFullError
from tandem.v1 import worker_pb2
from tandem.worker.reports import Reports
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Phase, Profile
from tandem_router.discovery import Share
from tandem_router.policies import POLICIES, LeastLoaded, PolicyFactory, Prefix

PREFILL_SECONDS, DECODE_SECONDS = 0.2, 30.0
LINK_SECONDS = 0.0005
"""From a router to a worker, or back."""
RAMP_SECONDS = 8.0
"""In which all the streams come that are open from then on."""
STEADY_SECONDS = 60.0
PREFILL_SLOTS = 8
TASK = b"x" * 8192
"""A prompt of some 3,000 tokens."""
MEDIAN_PROMPT, MOST_PROMPT = 1_200, 8_000
"""Tokens; their logarithms are spread normally, by 1."""
TOKENS_A_SECOND = 33.0
"""What decode generates for each stream."""
STEP_SECONDS = 0.02
"""How often a decode worker sends a frame."""
TAKEOVER_SECONDS = 2.0
"""From a router's death to the list without it."""
SLOW_RAMP_SECONDS = 3 * DECODE_SECONDS
"""Likewise, with --prefill-load: then requests come as they do later."""
WARM_SECONDS = 5.0
"""After the ramp, and after a router's death, that are not measured."""


def _prompt(chance: random.Random) -> int:
    return min(MOST_PROMPT, max(1, int(chance.lognormvariate(log(MEDIAN_PROMPT), 1.0))))


MEAN_PROMPT = mean(map(_prompt, itertools.repeat(random.Random(0), 100_000)))
KV_OF_STREAM = int(MEAN_PROMPT + TOKENS_A_SECOND * DECODE_SECONDS)
"""What a stream holds in the mean: so KV caches are as full as slots are."""


@dataclass(slots=True, eq=False)
class Worker:
    """A worker, as far as routers see it."""

    key: str
    profile: Profile
    kv_tokens: int
    open: int = 0
    prompt_tokens: int = 0
    """Those of its open legs."""
    began: float = 0.0
    """When these began, summed up."""
    busy_until: float = 0.0
    reports: Reports = field(init=False)

    def kv_used(self, now: float) -> int:
        """Prompts, and what was generated since they came."""
        return self.prompt_tokens + int(TOKENS_A_SECOND * (self.open * now - self.began))


@dataclass(slots=True, eq=False)
class Stream:
    """Both legs of one attempt."""

    prefill: int
    came: float
    prompt_tokens: int
    decode: int = 0
    accepted: int = 0
    """Legs that their workers have taken."""
    began: dict[int, float] = field(default_factory=dict)
    """When they did, by leg."""


class Router:
    """A core, and what its workers have of it."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet = fleet
        self.name = name
        self.share = Share(name, decode_routers=fleet.decode_routers)
        self.serves: set[str] = set()
        """The workers of its share."""
        draw = fleet.chance.randrange
        made: dict[str, PolicyFactory] = {
            **POLICIES,
            "least_loaded": partial(LeastLoaded, draw),
            "prefix": partial(Prefix, draw),
        }
        alone = fleet.policy == "prefix"  # of prefill
        self.core = RouterCore(
            bounds=Bounds(max_queue=1_000_000, max_retries=3),
            prefill_policy=made[fleet.policy],
            decode_policy=made["least_loaded" if alone else fleet.policy],
            new_room=itertools.count(1).__next__,
        )
        self.alive = True
        self.spent: Counter[str] = Counter()
        """Nanoseconds of CPU by the kind of event."""
        self.handled: Counter[str] = Counter()
        self.open: dict[int, Worker] = {}
        """Legs, and where they are."""
        self._streams: dict[int, Stream] = {}
        """By the number of either leg."""
        self._numbers = itertools.count(1)
        self._prompts: dict[int, tuple[float, int]] = {}
        """By sequence: when it came, and its tokens."""
        self.feed(events.FrontendUp(1))

    def feed(self, event: events.Event) -> None:
        began = time.process_time_ns()
        done = self.core.handle(self._fleet.now, (event,))
        name = type(event).__name__
        self.spent[name] += time.process_time_ns() - began
        self.handled[name] += 1
        for action in done:
            if isinstance(action, actions.StartLeg):
                self._start(action)
            elif isinstance(action, actions.CancelLeg):
                self._fleet.later(2 * LINK_SECONDS, self._cancelled, action.leg)
            elif isinstance(action, actions.EndSequence):
                error = action.error
                self._fleet.failed[error.code if error else "terminated"] += 1

    def divide(self, routers: frozenset[str]) -> None:
        """Take up the workers that are new in its share. None leaves it here: only a router that
        comes would take one away.
        """
        phases = {key: each.profile.phase for key, each in self._fleet.workers.items()}
        for key, phase in self.share.of(phases, routers).items():
            if key not in self.serves:
                self.serves.add(key)
                worker = self._fleet.workers[key]
                self.feed(
                    events.WorkerUp(
                        worker=key,
                        listed_as=phase,
                        profile=worker.profile,
                        other_legs=worker.open,
                    )
                )

    def sending(self) -> int:
        """Decode workers that run something for it."""
        phase = Phase.DECODE
        return len({each.key for each in self.open.values() if each.profile.phase is phase})

    def submit(self) -> None:
        number, fleet = next(self._numbers), self._fleet
        tokens = fleet.prompt()
        self._prompts[number] = fleet.now, tokens
        self.feed(submit(number, fleet.chance, TASK, tokens))

    def _start(self, action: actions.StartLeg) -> None:
        worker = self._fleet.workers[action.worker]
        self.open[action.leg] = worker
        if worker.profile.phase is Phase.PREFILL:
            self._streams[action.leg] = Stream(action.leg, *self._prompts[action.command.sequence])
        else:  # its prefill leg was started just before
            stream = self._streams[action.leg] = self._streams[action.leg - 1]
            stream.decode = action.leg
        self._fleet.later(LINK_SECONDS, self._arrive, action.leg)

    def _arrive(self, leg: int) -> None:
        """The leg has reached its worker, which takes it while it has a slot."""
        worker = self.open.get(leg)
        if worker is None or not self.alive:
            return
        fleet = self._fleet
        if worker.open >= worker.profile.max_sequences:
            fleet.refused += 1
            fleet.later(LINK_SECONDS, self._refuse, leg)
            return
        stream = self._streams[leg]
        worker.open += 1
        worker.reports.began((self.name, leg), stream.prompt_tokens)
        worker.prompt_tokens += stream.prompt_tokens
        worker.began += fleet.now
        stream.began[leg] = fleet.now
        stream.accepted += 1
        if stream.accepted == 2:
            seconds = fleet.prefill_seconds(self.open[stream.prefill], stream.prompt_tokens)
            fleet.later(seconds, self._prefilled, stream)

    def _refuse(self, leg: int) -> None:
        full = QueueFullError("no slot")
        self._close(leg, Outcome.FAILED, error=full, retryable=True, begun=False)

    def _prefilled(self, stream: Stream) -> None:
        """The KV is there: prefill is done, decode goes on for as long as it takes."""
        if stream.prefill not in self.open or stream.decode not in self.open or not self.alive:
            return
        worker = self.open[stream.decode]
        worker.began += self._fleet.now - stream.began[stream.decode]
        stream.began[stream.decode] = self._fleet.now
        self._fleet.first_tokens.append(self._fleet.now - stream.came)
        self._leave(stream.prefill)
        self._close(stream.prefill, Outcome.FINISHED)
        self.feed(events.LegStarted(worker.key, stream.decode))
        seconds = self._fleet.chance.expovariate(1 / DECODE_SECONDS)
        self._fleet.later(seconds, self._finish, stream.decode)

    def _finish(self, leg: int) -> None:
        if leg in self.open and self.alive:
            self._leave(leg)
            self._close(leg, Outcome.FINISHED)

    def _cancelled(self, leg: int) -> None:
        if leg in self.open and self.alive:
            if leg in self._streams[leg].began:
                self._leave(leg)
            self._close(leg, Outcome.CANCELLED)

    def _leave(self, leg: int) -> None:
        worker, stream = self.open[leg], self._streams[leg]
        worker.open -= 1
        worker.reports.ended((self.name, leg), stream.prompt_tokens)
        worker.prompt_tokens -= stream.prompt_tokens
        worker.began -= stream.began.pop(leg)

    def _close(self, leg: int, outcome: Outcome, **more: object) -> None:
        worker = self.open.pop(leg)
        del self._streams[leg]
        self.feed(events.LegClosed(worker.key, leg, outcome, **more))  # type: ignore[arg-type]

    def die(self) -> int:
        """Its workers end what they had of it. Returns how many streams that were."""
        self.alive = False
        lost = self.core.state.open_sequences
        for leg in self.open:
            if leg in self._streams[leg].began:
                self._leave(leg)
        return lost


@dataclass
class Fleet:
    """Routers and workers, and the virtual time."""

    policy: str
    seed: int
    decode_slots: int
    decode_routers: int = 0
    prefill_speed: float = 0.0
    """Tokens a second; 0: each prompt takes PREFILL_SECONDS, beside the others."""
    early_reports: float = 10.0
    """The most a second of a worker, beside the regular ones."""
    reported: int = 0
    """Reports of all workers, once for each router."""
    workers: dict[str, Worker] = field(default_factory=dict)
    routers: list[Router] = field(default_factory=list)
    now: float = 0.0
    refused: int = 0
    """Legs for which a worker had no slot."""
    first_tokens: list[float] = field(default_factory=list)
    """From a request's arrival to the end of its prefill."""
    failed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._agenda: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()

    def build(self, workers: int, routers: int) -> None:
        for index in range(workers):
            up = worker_up(index, prefill_slots=PREFILL_SLOTS, decode_slots=self.decode_slots)
            worker = Worker(up.worker, up.profile, self.decode_slots * KV_OF_STREAM)
            worker.reports = Reports(
                partial(self._tell, worker),
                slots=up.profile.max_sequences,
                early_a_second=self.early_reports,
                prefixes=None,
                clock=lambda: self.now,
                later=self.later,
            )
            self.workers[up.worker] = worker
        self.routers += [Router(self, f"10.1.0.{index}:7000") for index in range(routers)]
        self.divide()
        for worker in self.workers.values():
            self.later(self.chance.random(), self._report, worker)

    def prompt(self) -> int:
        """The length of a prompt."""
        return _prompt(self.chance)

    def prefill_seconds(self, worker: Worker, tokens: int) -> float:
        """Until a prompt is computed that comes now."""
        if not self.prefill_speed:
            return PREFILL_SECONDS
        worker.busy_until = max(worker.busy_until, self.now) + tokens / self.prefill_speed
        return worker.busy_until - self.now

    def fullest_kv(self) -> float:
        """The share of its KV cache that the decode worker holds which has the most."""
        phase, now = Phase.DECODE, self.now
        mine = [each for each in self.workers.values() if each.profile.phase is phase]
        return max(each.kv_used(now) / each.kv_tokens for each in mine)

    def divide(self) -> None:
        """Tell each router which others there are."""
        alive = [each for each in self.routers if each.alive]
        for router in alive:
            router.divide(frozenset(each.name for each in alive))

    def later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), call, arguments))

    def run(self, seconds: float) -> None:
        """Until then nothing is left to do."""
        until = self.now + seconds
        while self._agenda[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(self._agenda)
            call(*arguments)
        self.now = until

    def come(self, per_second: float, until: float) -> None:
        """Requests at random times, each to any router that is there."""
        if self.now < until:
            self.chance.choice([each for each in self.routers if each.alive]).submit()
            self.later(self.chance.expovariate(per_second), self.come, per_second, until)

    def loads(self) -> list[int]:
        """Open legs of each decode worker."""
        phase = Phase.DECODE
        return [each.open for each in self.workers.values() if each.profile.phase is phase]

    def streams(self) -> int:
        return sum(each.core.state.open_sequences for each in self.routers if each.alive)

    def _report(self, worker: Worker) -> None:
        worker.reports.tell()
        self.later(1.0, self._report, worker)

    def _tell(self, worker: Worker) -> None:
        load = worker_pb2.Load(
            open_legs=worker.open,
            prompt_tokens=worker.prompt_tokens,
            kv_tokens_used=worker.kv_used(self.now),
            kv_tokens_total=worker.kv_tokens,
        )
        told = events.WorkerLoad(worker.key, load)
        for router in self.routers:
            if router.alive and worker.key in router.serves:
                router.feed(told)
                self.reported += 1


@dataclass
class Watch:
    """What is seen in a time of steady load."""

    loads: list[list[int]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    kv: list[float] = field(default_factory=list)
    """The share of the fullest KV cache."""
    sending: list[int] = field(default_factory=list)
    """Decode workers that send a router frames, of the router with the most of them."""

    def sample(self, fleet: Fleet, seconds: float) -> None:
        """Look at the fleet once a virtual second."""
        for _ in range(int(seconds)):
            fleet.run(1.0)
            self.loads.append(sorted(fleet.loads()))
            self.kv.append(fleet.fullest_kv())
            self.sending.append(max(each.sending() for each in fleet.routers if each.alive))
            self.waiting.append(
                sum(len(each.core.state.waiting) for each in fleet.routers if each.alive)
            )

    def share(self, place: float) -> float:
        """The load of a decode worker at a place of their order, from 0 to 1, beside the mean."""
        return mean(each[round(place * (len(each) - 1))] / mean(each) for each in self.loads)


def measured(options: argparse.Namespace, routers: int) -> dict[str, float]:
    """One row of the table."""
    slots = round(options.streams / (options.workers / 2) / options.load)
    per_second = options.streams / (DECODE_SECONDS + PREFILL_SECONDS)
    speed, ramp = 0.0, RAMP_SECONDS
    if (
        options.prefill_load
    ):  # a faster ramp than the prefill workers can follow would leave a queue
        speed = per_second * MEAN_PROMPT / (options.workers / 2) / options.prefill_load
        ramp = SLOW_RAMP_SECONDS
    fleet = Fleet(
        options.policy, options.seed, slots, options.decode_routers, speed, options.early_reports
    )
    fleet.build(options.workers, routers)
    fleet.come(per_second if speed else options.streams / ramp, ramp)
    fleet.run(ramp)
    fleet.come(per_second, fleet.now + WARM_SECONDS + STEADY_SECONDS)
    fleet.run(WARM_SECONDS)
    fleet.refused = fleet.reported = 0
    fleet.first_tokens.clear()
    before = {each: (each.spent.copy(), each.handled.copy()) for each in fleet.routers}
    steady, after = Watch(), Watch()
    steady.sample(fleet, STEADY_SECONDS / 2)
    refused, first_tokens = fleet.refused, sorted(fleet.first_tokens)
    told = fleet.reported / (STEADY_SECONDS / 2)
    costs = [_cost(each, *before[each]) for each in fleet.routers]
    requests = sum(each.handled["Submit"] - before[each][1]["Submit"] for each in fleet.routers)
    open_then = fleet.streams()
    served = max(len(each.serves) for each in fleet.routers)
    lost = 0
    if routers > 1:
        lost = fleet.routers[0].die()
        fleet.later(TAKEOVER_SECONDS, fleet.divide)
        for _ in range(lost):  # within a second
            alive = fleet.chance.choice(fleet.routers[1:])
            fleet.later(fleet.chance.random(), alive.submit)
        fleet.run(WARM_SECONDS)
        fleet.refused = 0
        after.sample(fleet, STEADY_SECONDS / 2 - WARM_SECONDS)
    return {
        "open streams": open_then,
        "us a request": median(each["request"] for each in costs),
        "us a load report": median(each["report"] for each in costs),
        "load reports of a worker": told / routers / options.workers,
        "CPU of a router, %": 100 * mean(each["seconds"] for each in costs) / (STEADY_SECONDS / 2),
        "decode workers of a router": served - options.workers // 2,
        "frames a router a second": mean(steady.sending) / STEP_SECONDS,
        "most loaded worker": steady.share(1.0),
        "least loaded worker": steady.share(0.0),
        "refused by workers, %": 100 * refused / (2 * requests),
        "first token, median s": median(first_tokens),
        "first token, 90 of 100, s": first_tokens[len(first_tokens) * 9 // 10],
        "fullest KV cache, %": 100 * mean(steady.kv),
        "waiting, most": max(steady.waiting),
        "waiting after a death": max(after.waiting, default=0),
        "failed": sum(fleet.failed.values()),
        "streams lost with a router": lost,
        "most loaded after a death": after.share(1.0) if routers > 1 else 0.0,
    }


def _cost(router: Router, spent: Counter[str], handled: Counter[str]) -> dict[str, float]:
    """What it spent since then, in microseconds."""
    gone = {name: (router.spent[name] - spent[name]) / 1000 for name in router.spent}
    count = {name: router.handled[name] - handled[name] for name in router.handled}
    ways = ("Submit", "LegStarted", "LegClosed")
    return {
        "request": sum(gone.get(name, 0.0) for name in ways) / count["Submit"],
        "report": gone["WorkerLoad"] / count["WorkerLoad"],
        "seconds": sum(gone.values()) / 1e6,
    }


def fleet_bytes(workers: int) -> float:
    """What so many workers take in a router's core, half of them decode."""
    fleet = Fleet("least_loaded", 1, decode_slots=125)
    gc.collect()
    tracemalloc.start()
    fleet.build(workers, 1)
    gc.collect()
    found = tracemalloc.take_snapshot()
    tracemalloc.stop()
    core = found.filter_traces([tracemalloc.Filter(True, "*/router/*")])
    return sum(each.size for each in core.statistics("filename"))


def stream_bytes(options: argparse.Namespace, streams: int = 5_000) -> float:
    """What one more open stream takes in a router's core."""
    fleet = Fleet(options.policy, options.seed, decode_slots=1_000)
    fleet.build(200, 1)
    gc.collect()
    tracemalloc.start()
    fleet.come(streams / RAMP_SECONDS, RAMP_SECONDS)
    fleet.run(RAMP_SECONDS)
    gc.collect()
    found = tracemalloc.take_snapshot()
    tracemalloc.stop()
    core = found.filter_traces([tracemalloc.Filter(True, "*/router/*")])
    return sum(each.size for each in core.statistics("filename")) / fleet.streams()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2_000, help="workers, half of them decode")
    parser.add_argument("--routers", type=int, nargs="+", default=(1, 8))
    parser.add_argument(
        "--decode-routers", type=int, default=0, help="routers of each decode worker; 0: all"
    )
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.8, help="share of the decode slots taken")
    parser.add_argument(
        "--prefill-load", type=float, default=0.0, help="share of the prefill workers' time taken"
    )
    parser.add_argument("--policy", choices=[*POLICIES], default="least_loaded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--early-reports", type=float, default=10.0, help="early reports of a worker a second"
    )
    parser.add_argument("--json", type=Path, help="where the table goes, for scale_plots.py")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}")
    print(
        f"{options.workers:,} workers, {options.streams:,} streams, {options.load:.0%} of the"
        f" decode slots; {options.policy}; each decode worker has"
        f" {options.decode_routers or 'all'} routers\n"
    )
    gc.freeze()
    table = {routers: measured(options, routers) for routers in options.routers}
    print(f"{'routers':<28}" + "".join(f"{routers:>10}" for routers in table))
    for name in next(iter(table.values())):
        cells = "".join(
            f"{row[name]:>10,.{0 if row[name] >= 1000 else 2}f}" for row in table.values()
        )
        print(f"{name:<28}{cells}")
    if options.json:
        options.json.write_text(json.dumps(table), encoding="utf-8")
    print(f"\nan open stream takes {stream_bytes(options):,.0f} bytes of its router's core,")
    print(f"a worker {fleet_bytes(options.workers) / options.workers:,.0f}")


if __name__ == "__main__":
    main()
