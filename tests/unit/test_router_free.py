"""What is chosen by the indexes of free workers is what a look at every worker would choose."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from router_bench import FINGERPRINT, Bench
from router_loads import worker_load
from simulated import submits
from simulated.fleet_invariants import fleet_faults

from tandem.endings import Outcome
from tandem.v1 import common_pb2
from tandem_router.core import actions, events
from tandem_router.core.fleet import Fleet
from tandem_router.core.group import TAKING
from tandem_router.core.machine import RouterCore
from tandem_router.core.picking import Pair, Pick
from tandem_router.core.sequences import Sequence
from tandem_router.core.values import (
    Bounds,
    Edition,
    Fingerprint,
    Needs,
    Phase,
    Profile,
    Standing,
)
from tandem_router.core.waiting import Queue
from tandem_router.core.worker import Worker
from tandem_router.policies import POLICIES, Candidates, LeastLoaded, PolicyFactory, Prompt
from tandem_router.policies.base import AnyCandidate

EDITION = Edition("tiny", "sha")
FINGERPRINTS = (FINGERPRINT, FINGERPRINT._replace(revision="2"))
REGEX = frozenset({"regex"})
NEEDS = (Needs(), Needs(), Needs(tokens=150), Needs(logits_processors=REGEX))
PROMPT = Prompt(tokens=100, tenant="")
REPUTATIONS = (Standing.WHOLE, Standing.EJECTED, Standing.PROBATION)
SEEDS, STEPS = 30, 120


class Least:
    """least_loaded, as if no other router used the workers: then nothing is left to chance."""

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        return next(candidates.by_load())


CHOOSING: dict[str, PolicyFactory] = {
    "round_robin": POLICIES["round_robin"],
    "least_loaded": Least,
}


class Naive:
    """The rules of docs/router.md, "Pairs", by passes over all workers."""

    def __init__(self, policy: str, fleet: Fleet) -> None:
        self.policy, self.fleet = policy, fleet
        self.last: dict[object, str] = {}
        """Of round_robin: the last that it chose, by what it chooses for."""
        self.prompts: dict[int, int] = {}
        """Tokens, by leg."""
        self.others: dict[Worker, int] = {}
        """Tokens that a worker had beyond those, when it last said so."""

    def takers(self, fingerprint: Fingerprint, phase: Phase) -> list[Worker]:
        workers = sorted(self.fleet.workers.values(), key=lambda each: each.key)
        mine = [each for each in workers if each.profile.fingerprint == fingerprint]
        return [each for each in mine if each.phase is phase and each.used_as in TAKING]

    def free(self, fingerprint: Fingerprint, phase: Phase) -> list[Worker]:
        return [each for each in self.takers(fingerprint, phase) if each.free]

    def choose(self, what: object, workers: list[Worker]) -> Worker:
        if self.policy == "least_loaded":
            return min(workers, key=lambda each: (self.load(each), each.key))
        last = self.last.get(what, "")
        chosen = next((each for each in workers if each.key > last), workers[0])
        self.last[what] = chosen.key
        return chosen

    def load(self, worker: Worker) -> float:
        tokens = sum(map(self.prompts.__getitem__, worker.legs)) + self.others.get(worker, 0)
        if worker.phase is Phase.PREFILL:
            return tokens / worker.capacity
        total = worker.kv_tokens_total
        return max(worker.open_legs / worker.capacity, tokens / total if total else 0)

    def able(self, needs: Needs) -> list[Fingerprint]:
        """Those all of whose workers that take work can run what needs that."""
        return [
            each
            for each in FINGERPRINTS
            if all(
                needs.tokens <= one.profile.context_length
                and needs.logits_processors <= one.profile.logits_processors
                for phase in Phase
                for one in self.takers(each, phase)
            )
        ]

    def pick(self, needs: Needs, other_than: Pair | None) -> Pair | None:
        last = other_than or Pair(None, None)  # type: ignore[arg-type]
        found = []
        for each in self.able(needs):
            decodes = self.free(each, Phase.DECODE)
            if decodes:
                prefills = self.free(each, Phase.PREFILL)
                found += [
                    one for one in prefills if (one, decodes) != (last.prefill, [last.decode])
                ]
        if not found:
            return None
        found.sort(key=lambda each: each.key)
        prefill = self.choose("prefill", _preferred(found, last.prefill))
        print_ = prefill.profile.fingerprint
        decodes = self.free(print_, Phase.DECODE)
        if prefill is last.prefill:
            decodes.remove(last.decode) if last.decode in decodes else None
        return Pair(prefill, self.choose(print_, _preferred(decodes, last.decode)))

    def pairs(self, fingerprints: Iterable[Fingerprint]) -> list[Pair]:
        return [
            Pair(prefill, decode)
            for each in fingerprints
            for prefill in self.takers(each, Phase.PREFILL)
            for decode in self.takers(each, Phase.DECODE)
        ]

    def free_pairs(self, needs: Needs) -> int:
        return sum(
            min(sum(one.free for one in self.free(each, phase)) for phase in Phase)
            for each in self.able(needs)
        )

    def parkers(self, needs: Needs, full: set[str]) -> list[Worker]:
        found: list[Worker] = []
        for each in self.able(needs):
            decodes = [decode.profile for decode in self.takers(each, Phase.DECODE)]
            hooked = any(decode.has_hook for decode in decodes)
            if decodes and not any(decode.has_classifiers for decode in decodes):
                found += [
                    one
                    for one in self.takers(each, Phase.PREFILL)
                    if one.profile.parks and (one.profile.has_hook or not hooked)
                ]
        return sorted((one for one in found if one.key not in full), key=lambda each: each.key)


def _preferred(workers: list[Worker], avoided: Worker | None) -> list[Worker]:
    sound = [each for each in workers if not each.overdue] or workers
    if avoided is None:
        return sound
    others = [each for each in sound if each is not avoided] or sound
    whole = [each for each in others if each.trust.reputation is Standing.WHOLE]
    sound = [each for each in whole if not each.trust.failed]
    return [each for each in sound if each.trust.ended] or sound or others


class Chance:
    """A fleet in which workers come, go and change by a seed."""

    def __init__(self, seed: int, policy: str) -> None:
        self.dice = random.Random(seed)
        self.fleet = Fleet(CHOOSING[policy], CHOOSING[policy])
        self.naive = Naive(policy, self.fleet)
        self.size = self.dice.choice((2, 5, 12))
        self.hooks = self.dice.random() < 0.5
        self.numbers = itertools.count(1)
        for _ in range(3 * self.size):
            self.up()

    def some(self) -> Worker | None:
        workers = [*self.fleet.workers.values()]
        return self.dice.choice(workers) if workers else None

    def step(self) -> None:
        kind = self.dice.choice(("up", "up", "down", "state", "standing", *6 * ("slots",), "ends"))
        worker = self.some()
        if kind == "up" or worker is None:
            self.up()
        elif kind == "down":
            del self.fleet.workers[worker.key]
            self.fleet.update(worker, 0.0)
        elif kind == "state":
            worker.draining = self.dice.random() < 0.2
            worker.trust.stalled = self.dice.random() < 0.2
            self.fleet.update(worker, 0.0)
        elif kind == "standing":
            worker.trust.reputation = self.dice.choice([*REPUTATIONS, Standing.WHOLE])
            worker.trust.probe = 0
            self.fleet.update(worker, 0.0)
        elif kind == "ends":
            worker.trust.leg_ended(0.0, -1, good=self.dice.random() < 0.6)
        else:
            self.slots(worker)
        assert [*fleet_faults(self.fleet)] == []
        self.forget_groups()

    def forget_groups(self) -> None:
        """A group that comes anew begins anew."""
        for each in FINGERPRINTS:
            if EDITION in self.fleet.editions and each not in self.fleet.editions[EDITION].groups:
                self.naive.last.pop(each, None)

    def up(self) -> None:
        phase, number = self.dice.choice([*Phase]), self.dice.randrange(self.size)
        key = f"{phase.value}-{number}"
        if old := self.fleet.workers.pop(key, None):
            self.fleet.update(old, 0.0)
            self.forget_groups()
        profile = Profile(
            name=key,
            phase=phase,
            fingerprint=self.dice.choice((FINGERPRINT, *FINGERPRINTS)),
            max_sequences=self.dice.choice((0, 1, 2, 4, 4)),
            context_length=self.dice.choice((100, 200, 200)),
            kv_endpoint=f"kv-of-{number % 4}",
            logits_processors=self.dice.choice((frozenset(), REGEX, REGEX)),
            has_hook=self.hooks and self.dice.random() < 0.3,
            has_classifiers=self.hooks and phase is Phase.DECODE and self.dice.random() < 0.05,
            parks=self.dice.random() < 0.7,
        )
        worker = Worker(key, phase, profile, draining=False, trust=self.fleet.trust(key))
        self.fleet.workers[key] = worker
        self.fleet.update(worker, 0.0)

    def slots(self, worker: Worker) -> None:
        prompts = self.naive.prompts
        if worker.free and self.dice.random() < 0.6:
            number = next(self.numbers)
            prompts[number] = self.dice.randint(1, 9)
            worker.take(number, prompts[number])
        elif worker.legs and self.dice.random() < 0.7:
            number = self.dice.choice(sorted(worker.legs))
            worker.give_back(number, prompts[number])
            worker.trust.probe = 0
            worker.overdue = min(worker.overdue, len(worker.legs))
        elif worker.legs and self.dice.random() < 0.3:
            worker.overdue = 1
        else:
            self.report(worker)
        had = worker.side is not None and worker.side.has(worker)
        takes = worker.used_as in TAKING
        assert self.fleet.place(worker) is (takes and worker.free > 0 and not had)

    def report(self, worker: Worker) -> None:
        """What it says of others' legs, and maybe of tokens."""
        mine = sum(map(self.naive.prompts.__getitem__, worker.legs))
        legs, tokens = self.dice.choice((0, 0, 1, 2)), self.dice.randint(0, 20)
        knows = self.dice.random() < 0.7
        said = mine + tokens if knows else None
        if worker.phase is Phase.DECODE:
            worker.report(len(worker.legs) + legs, None, mine + tokens, 50 if knows else 0)
        else:
            worker.report(len(worker.legs) + legs, said, self.dice.randint(0, 99), 100)
        self.naive.others[worker] = tokens if knows or worker.phase is Phase.DECODE else legs

    def pair(self) -> Pair | None:
        """One that a retry may avoid; its workers may be gone."""
        mine = [each for each in self.fleet.workers.values() if each.phase is Phase.PREFILL]
        if not mine or self.dice.random() < 0.3:
            return None
        prefill = self.dice.choice(mine)
        others = [
            each
            for each in self.fleet.workers.values()
            if each.phase is Phase.DECODE
            and not prefill.profile.fingerprint.difference(each.profile.fingerprint)
        ]
        return Pair(prefill, self.dice.choice(others)) if others else None

    def compare(self) -> bool:
        """Whether there was anything to choose."""
        fleet, naive, last = self.fleet, self.naive, self.pair()
        if EDITION not in fleet.editions:
            return False
        needs = self.dice.choice(NEEDS)
        expected, found = (
            naive.pick(needs, last),
            fleet.pick(EDITION, needs, PROMPT, other_than=last, now=0.0),
        )
        assert (found and Pair(found[0].worker, found[1].worker)) == expected
        pairs = naive.pairs(naive.able(needs))
        has_pair = fleet.has_pair(EDITION, needs, other_than=last)
        assert has_pair is any(each != last for each in pairs)
        assert fleet.editions[EDITION].ready_pairs == len(naive.pairs(FINGERPRINTS))
        assert fleet.free_pairs(EDITION, needs) == naive.free_pairs(needs)
        full = {each.key for each in fleet.workers.values() if self.dice.random() < 0.2}
        parkers = naive.parkers(needs, full)
        assert fleet.parkers(EDITION, needs, other_than=full) == len(parkers)
        free = [each for each in parkers if each.free]
        if full:
            assert worker_of(fleet.pick_parker(EDITION, needs, PROMPT, other_than=full)) is (
                naive.choose("prefill", _preferred(free, None)) if free else None
            )
        else:
            assert fleet.parking_slots(EDITION, needs) == sum(each.free for each in free)
        self.compare_decoders()
        return expected is not None

    def compare_decoders(self) -> None:
        keeper = self.fleet.keeper("kv-of-1")
        if keeper is None:
            assert self.fleet.decoders("kv-of-1") == 0
            return
        print_ = keeper.profile.fingerprint
        takers, free = (
            self.naive.takers(print_, Phase.DECODE),
            self.naive.free(print_, Phase.DECODE),
        )
        assert self.fleet.decoders("kv-of-1") == len(takers)
        assert self.fleet.decode_slots("kv-of-1") == sum(each.free for each in free)
        chosen = self.naive.choose(print_, _preferred(free, None)) if free else None
        assert worker_of(self.fleet.pick_decoder("kv-of-1", PROMPT)) is chosen


def worker_of(pick: Pick | None) -> Worker | None:
    return pick and pick.worker


@pytest.mark.promise("S5-240")
@pytest.mark.parametrize("policy", [*CHOOSING])
def test_the_indexes_choose_what_a_look_at_every_worker_would(policy: str) -> None:
    chosen = 0
    for seed in range(SEEDS):
        chance = Chance(seed, policy)
        for _ in range(STEPS):
            chance.step()
            chosen += chance.compare()
    assert chosen > SEEDS * STEPS // 3


class Fleetful:
    """A core with so many workers of two slots, half of each phase, one of which is taken."""

    def __init__(self, workers: int) -> None:
        self.core = RouterCore(
            bounds=Bounds(),
            prefill_policy=LeastLoaded,
            decode_policy=LeastLoaded,
            new_room=itertools.count(1).__next__,
        )
        self.first = itertools.count(1)
        self.core.handle(0.0, [events.FrontendUp(1), *map(self.up, range(workers))])
        self.core.handle(0.0, [self.submit() for _ in range(workers // 4)])

    @staticmethod
    def up(index: int) -> events.WorkerUp:
        phase = Phase.DECODE if index % 2 else Phase.PREFILL
        key = f"10.0.0.{index:04}:1"
        profile = Profile(
            name=key,
            phase=phase,
            fingerprint=FINGERPRINT,
            max_sequences=2,
            context_length=100,
            kv_endpoint=f"kv-of-{key}",
            parks=True,
        )
        return events.WorkerUp(worker=key, listed_as=phase, profile=profile)

    def submit(self, **fields: Any) -> events.Submit:
        given: dict[str, Any] = {"n": 1, "model": "tiny", "timeout_seconds": 60.0, "task": b"t"}
        return submits.submit(next(self.first), **given | fields)

    def fill(self) -> None:
        """All slots are taken, and 50 sequences wait."""
        workers = len(self.core.state.fleet.workers)
        self.core.handle(0.0, [self.submit() for _ in range(workers + 50)])

    def calls(self, *batch: events.Event) -> int:
        """Functions that the core calls for that, Python's own included."""
        count = 0

        def counts(_: object, what: str, __: object) -> None:
            nonlocal count
            count += what in ("call", "c_call")

        sys.setprofile(counts)
        try:
            self.core.handle(0.0, batch)
        finally:
            sys.setprofile(None)
        return count


FEW, MANY = 20, 400
VOUCHER = common_pb2.Voucher(
    room=7, kv_peer="kv-of-10.0.0.0002:1", model="tiny", task_digest=b"digest"
)


@pytest.mark.promise("S5-240")
@pytest.mark.parametrize(
    ("what", "full"),
    [
        (lambda fleet: [fleet.submit()], False),
        (lambda fleet: [fleet.submit(context_only=True)], False),
        (lambda fleet: [fleet.submit(voucher=VOUCHER)], False),
        (lambda fleet: [worker_load("10.0.0.0003:1", 2)], False),
        (lambda fleet: [worker_load("10.0.0.0003:1", 2)], True),
        (lambda fleet: [events.LegClosed("10.0.0.0001:1", 2, Outcome.FINISHED)], True),
        (lambda fleet: [events.WorkerDraining("10.0.0.0003:1", True)], False),
        (lambda fleet: [events.WorkerDown("10.0.0.0003:1", "gone")], False),
        (lambda fleet: [fleet.up(999)], False),
    ],
    ids=["request", "parked", "resumed", "load", "load-full", "freed", "drain", "down", "up"],
)
def test_what_an_event_costs_does_not_depend_on_how_many_workers_there_are(
    what: Callable[[Fleetful], list[events.Event]], full: bool
) -> None:
    calls = []
    for workers in (FEW, MANY):
        fleet = Fleetful(workers)
        if full:
            fleet.fill()
        calls.append(fleet.calls(*what(fleet)))
    few, many = calls
    assert many <= few + 5


@pytest.mark.promise("S5-240")
def test_a_report_that_frees_nothing_asks_nobody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, asked = Fleetful(FEW), []
    fleet.fill()
    head = Queue.head

    def told(self: Queue, *passed: Any) -> Sequence | None:
        asked.append(self)
        return head(self, *passed)

    monkeypatch.setattr(Queue, "head", told)
    fleet.core.handle(0.0, [worker_load(key, 2) for key in fleet.core.state.fleet.workers])
    assert asked == []
    fleet.core.handle(0.0, [events.LegClosed("10.0.0.0000:1", 1, Outcome.FINISHED)])
    assert asked != []


def test_whoever_is_next_once_a_key_has_given_slots_back_starts_at_once() -> None:
    """Though no worker was full: who was next before could not run where there was room."""
    bench = Bench(0, 0)
    bench.worker(Phase.PREFILL, 0, max_sequences=1, parks=True)
    bench.worker(Phase.PREFILL, 1, max_sequences=8)
    bench.worker(Phase.DECODE, 0, max_sequences=8)
    for number, tenant in enumerate(("other", "much", "much", "little"), start=1):
        bench.submit(number, tenant=tenant)
    mine = bench.legs()
    bench.submit(5, tenant="little", context_only=True)
    bench.submit(6, tenant="much")
    assert not bench.of(actions.StartLeg), "no worker that parks is free, and nobody passes"
    bench.feed(events.LegStarted(mine[1].worker, mine[1].leg), after=10.0)
    bench.close(mine[0])
    bench.close(mine[1])
    assert [each.command.sequence for each in bench.of(actions.StartLeg)] == [6, 6]
