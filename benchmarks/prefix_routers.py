"""Whether several routers find prefixes as well as one: the real cores in virtual time, over
prefill workers that they share and whose caches and loads they know by reports, a second apart, and
earlier where much has changed.

Requests go to the routers in turn. A worker computes one prompt after the other, 20,480 tokens a
second; decode takes no time. Loads: `documents` is 150 documents of 6,000 tokens, each asked about
twenty times in random order; `conversations` come and go, each turn all of the one before and more.

    python benchmarks/prefix_routers.py                     # about two minutes
    python benchmarks/prefix_routers.py --routers 1 8 --policies prefix
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import machine

from tandem.endings import Outcome
from tandem.engine.prefix_log import PrefixLog, PrefixReader
from tandem.errors import QueueFullError
from tandem.prefix_blocks import BLOCK_TOKENS, unpacked
from tandem.v1 import router_pb2, worker_pb2
from tandem.worker.reports import Reports
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.policies import LeastLoaded, PolicyFactory, Prefix

TOKENS_A_SECOND = 20_480
SLOTS = 32
FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
Arrival = tuple[float, list[int], int]
"""When, which blocks, and how many tokens beyond those."""


def documents(dice: random.Random, rate: float) -> Iterator[Arrival]:
    """150 of 6,000 tokens, twenty questions to each."""
    asked = [number for number in range(150) for _ in range(20)]
    dice.shuffle(asked)
    now = 0.0
    for number in asked:
        now += dice.expovariate(rate)
        yield now, [number * 1000 + n for n in range(6000 // BLOCK_TOKENS)], 80


def conversations(dice: random.Random, rate: float) -> Iterator[Arrival]:
    """There are 3,000, of up to eight turns, each some 600 tokens longer, about a minute apart."""
    arrivals: list[Arrival] = []
    began = 0.0
    for number in range(3_000):
        began += dice.expovariate(rate)
        now, blocks = began, list(range(8))
        for turn in range(dice.randint(1, 8)):
            more = dice.randint(4, 16)
            blocks = [*blocks, *(10**6 + number * 1000 + turn * 50 + n for n in range(more))]
            arrivals.append((now, blocks, dice.randrange(BLOCK_TOKENS)))
            now += dice.expovariate(1 / 60)
    yield from sorted(arrivals)


LOADS: dict[str, tuple[Callable[[random.Random, float], Iterator[Arrival]], float, int]] = {
    "documents": (documents, 30.0, 307_200),
    "conversations": (conversations, 18.0, 1_536_000),
}
"""What comes, how often a second, and the tokens that a worker caches."""


@dataclass(slots=True)
class Leg:
    """A prompt at a worker."""

    router: int
    start: actions.StartLeg
    decode: actions.StartLeg
    blocks: list[int]
    tokens: int
    arrived: float


@dataclass(slots=True, eq=False)
class Worker:
    """Computes one prompt after the other."""

    key: str
    cache_blocks: int
    queue: deque[Leg] = field(default_factory=deque)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    log: PrefixLog = field(default_factory=PrefixLog)
    reports: Reports = field(init=False)
    readers: list[PrefixReader] = field(default_factory=list)

    def cached(self, blocks: list[int]) -> int:
        """Tokens of a prompt that it need not compute."""
        return BLOCK_TOKENS * sum(1 for _ in itertools.takewhile(self.cache.__contains__, blocks))

    def use(self, blocks: list[int]) -> None:
        """They are in its cache from now on."""
        for each in reversed(blocks):
            self.cache[each] = None
            self.cache.move_to_end(each)
        self.log.enter(blocks)
        over = len(self.cache) - self.cache_blocks
        self.log.leave([self.cache.popitem(last=False)[0] for _ in range(over)])

    def report(self, router: int) -> events.WorkerLoad:
        """What it tells a router."""
        load = worker_pb2.Load(
            open_legs=len(self.queue),
            prompt_tokens=sum(leg.start.command.to_compute for leg in self.queue),
            cache=self.readers[router].take(),
        )
        return events.WorkerLoad(self.key, load)


class World:
    """Routers, workers, and what happens next."""

    def __init__(
        self,
        routers: int,
        workers: int,
        policy: PolicyFactory,
        cache_tokens: int,
        early_reports: float,
    ) -> None:
        self.now, self._order = 0.0, itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self.cores = [
            RouterCore(
                bounds=Bounds(max_queue=10**6),
                prefill_policy=policy,
                decode_policy=LeastLoaded,
                new_room=itertools.count(1).__next__,
            )
            for _ in range(routers)
        ]
        self.workers = {
            f"prefill-{n}": Worker(f"prefill-{n}", cache_tokens // BLOCK_TOKENS)
            for n in range(workers)
        }
        for worker in self.workers.values():
            worker.reports = Reports(
                partial(self._tell, worker),
                slots=SLOTS,
                early_a_second=early_reports,
                prefixes=worker.log,
                clock=lambda: self.now,
                later=self._later,
            )
        self.blocks: dict[int, Arrival] = {}
        self.waits: list[float] = []
        self.starts = self.refused = self.prompt = self.hits = 0
        for router in range(routers):
            self._connect(router)
        for number, worker in enumerate(self.workers.values()):
            self.at(number / workers, partial(self._report, worker))

    def at(self, when: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._due, (when, next(self._order), call))

    def run(self, arrivals: Iterator[Arrival]) -> None:
        """Let all come, until all is answered."""
        for number, arrival in enumerate(arrivals, 1):
            self.blocks[number] = arrival
            self.at(arrival[0], partial(self._submit, number))
        while len(self.waits) < len(self.blocks):
            self.now, _, call = heapq.heappop(self._due)
            call()

    def _connect(self, router: int) -> None:
        self._feed(router, events.FrontendUp(1))
        self._feed(router, _up("decode-0", Phase.DECODE, 10**6))
        for worker in self.workers.values():
            self._feed(router, _up(worker.key, Phase.PREFILL, SLOTS))
            worker.readers.append(worker.log.reader())

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self.at(self.now + seconds, call)

    def _tell(self, worker: Worker) -> None:
        for router in range(len(self.cores)):
            self._feed(router, worker.report(router))

    def _report(self, worker: Worker) -> None:
        worker.reports.tell()
        self.at(self.now + 1.0, partial(self._report, worker))

    def _submit(self, number: int) -> None:
        _, blocks, rest = self.blocks[number]
        message = router_pb2.Submit(
            first_sequence=number,
            n=1,
            model="tiny",
            tokenizer_sha256="sha",
            timeout_ms=10**9,
            prompt_tokens=len(blocks) * BLOCK_TOKENS + rest,
            weight=1,
        )
        submit = events.Submit(1, message, b"", array("Q", blocks))
        self._feed(number % len(self.cores), submit)

    def _feed(self, router: int, *batch: events.Event) -> None:
        done = self.cores[router].handle(self.now, batch)
        starts = [each for each in done if isinstance(each, actions.StartLeg)]
        for prefill, decode in zip(starts[::2], starts[1::2], strict=True):
            self._start(router, prefill, decode)

    def _start(self, router: int, prefill: actions.StartLeg, decode: actions.StartLeg) -> None:
        self.starts += 1
        worker = self.workers[prefill.worker]
        arrived, blocks, rest = self.blocks[prefill.command.sequence]
        tokens = len(blocks) * BLOCK_TOKENS + rest
        leg = Leg(router, prefill, decode, blocks, tokens, arrived)
        if len(worker.queue) >= SLOTS:
            self.refused += 1
            self.at(self.now + 0.001, partial(self._refuse, leg))
            return
        worker.queue.append(leg)
        command = prefill.command
        worker.reports.began(id(leg), command.to_compute, unpacked(command.new_blocks))
        if len(worker.queue) == 1:
            self._compute(worker)

    def _refuse(self, leg: Leg) -> None:
        full = QueueFullError("it is full")
        closed = events.LegClosed(
            leg.start.worker, leg.start.leg, Outcome.FAILED, error=full, retryable=True
        )
        cancelled = events.LegClosed(leg.decode.worker, leg.decode.leg, Outcome.CANCELLED)
        self._feed(leg.router, closed, cancelled)

    def _compute(self, worker: Worker) -> None:
        leg = worker.queue[0]
        hits = worker.cached(leg.blocks)
        self.hits += hits
        self.prompt += leg.tokens
        self.at(self.now + (leg.tokens - hits) / TOKENS_A_SECOND, partial(self._computed, worker))

    def _computed(self, worker: Worker) -> None:
        leg = worker.queue.popleft()
        worker.use(leg.blocks)
        worker.reports.ended(id(leg), leg.start.command.to_compute)
        self.waits.append(self.now - leg.arrived)
        if worker.queue:
            self._compute(worker)
        decode = leg.decode
        self._feed(
            leg.router,
            events.LegClosed(leg.start.worker, leg.start.leg, Outcome.FINISHED),
            events.LegStarted(decode.worker, decode.leg),
            events.LegClosed(decode.worker, decode.leg, Outcome.FINISHED),
        )


def _up(key: str, phase: Phase, slots: int) -> events.WorkerUp:
    profile = Profile(
        name=key,
        phase=phase,
        fingerprint=FINGERPRINT,
        max_sequences=slots,
        context_length=10**6,
        kv_endpoint=f"kv-{key}",
    )
    return events.WorkerUp(worker=key, listed_as=phase, profile=profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--policies", nargs="+", default=["least_loaded", "prefix"])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=[*LOADS])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--early-reports", type=float, default=10.0)
    options = parser.parse_args()
    print(f"machine: {machine.describe()}; {options.workers} prefill workers")
    made = {"least_loaded": LeastLoaded, "prefix": Prefix}
    for load, policy, routers in itertools.product(
        options.loads, options.policies, options.routers
    ):
        source, rate, cache_tokens = LOADS[load]
        draw = random.Random(7).randrange
        factory = partial(made[policy], draw)
        world = World(routers, options.workers, factory, cache_tokens, options.early_reports)
        world.run(source(random.Random(1), rate))
        waits = sorted(world.waits)
        print(
            f"{load:<14}{policy:<13}{routers} routers  hit rate {world.hits / world.prompt:.3f}"
            f"  TTFT p50 {waits[len(waits) // 2]:.2f} p90 {waits[int(0.9 * len(waits))]:.2f} s"
            f"  starts refused {world.refused / world.starts:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
