"""Requests of one phase among others in every order; by themselves they are in
tests/unit/router_traces/halves.txt.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from router_bench import Bench
from router_loads import worker_load

from tandem.endings import Outcome
from tandem.errors import DrainingError, EngineError, ParkingFullError, QueueFullError
from tandem.v1 import common_pb2
from tandem_router.core import actions, events
from tandem_router.core.values import Phase

DIGEST = bytes(32)
SEEDS = range(80)
STEPS = 120


class Chance:
    """Whatever may happen, in an order that a seed draws. The rules of the simulation judge."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.b = Bench(0, 2, max_queue=4)
        for index in range(2):
            self.b.worker(Phase.PREFILL, index, parks=True)
        self.vouchers: list[common_pb2.Voucher] = []
        self.first = 0
        self.given = self.resumed = 0
        self.full: defaultdict[int, set[str]] = defaultdict(set)
        """Workers that refused to park a sequence's KV."""
        self.full_ends = 0

    def step(self) -> None:
        getattr(self, self.dice.choice(self.KINDS))()
        for start in self.b.of(actions.StartLeg):
            command = start.command
            assert start.worker not in self.full[command.sequence] or not command.context_only
        self.full_ends += sum(code == ParkingFullError.code for _, code in self.b.ends())
        for given in self.b.of(actions.GiveVoucher):
            self.vouchers.append(given.voucher)
            self.given += 1
        self.resumed += sum(bool(each.command.task_digest) for each in self.b.of(actions.StartLeg))

    KINDS = (*["submit"] * 6, *["leg"] * 14, "cancel", "worker", "time")

    def submit(self) -> None:
        self.first += 1
        fields: dict[str, Any] = {"timeout_seconds": self.dice.choice([5.0, 50.0])}
        fields["tenant"] = self.dice.choice(["", "a", "b"])
        kind = self.dice.choice(["both", "first", "first", "second"])
        if kind == "first":
            fields["context_only"] = True
        elif kind == "second" and self.vouchers:
            fields["voucher"] = self.dice.choice(self.vouchers)
        self.b.submit(self.first, **fields)

    def leg(self) -> None:
        legs = list(self.b.core.state.legs.values())
        if not legs:
            return
        leg = self.dice.choice(legs)
        where = leg.worker.key, leg.number
        match self.dice.choice(["started", "parked", "verdict", "end", "end", "fail", "full"]):
            case "started":
                self.b.feed(events.LegStarted(*where))
            case "parked":
                self.parked(*where)
            case "verdict":
                self.b.feed(events.LegVerdict(*where, terminate=self.dice.random() < 0.2))
            case "end":
                if self.dice.random() < 0.8:
                    self.b.feed(events.LegVerdict(*where, terminate=False))
                    self.parked(*where)
                self.b.feed(events.LegClosed(*where, Outcome.FINISHED))
            case "fail":
                error = EngineError("x")
                retryable = self.dice.random() < 0.5
                self.b.feed(
                    events.LegClosed(*where, Outcome.FAILED, error=error, retryable=retryable)
                )
            case "full":
                full = self.dice.choice(
                    [QueueFullError("x"), DrainingError("x"), ParkingFullError("x")]
                )
                if isinstance(full, ParkingFullError):
                    if not leg.sequence.request.submit.context_only:
                        return
                    self.full[leg.sequence.number].add(leg.worker.key)
                self.b.feed(events.LegClosed(*where, Outcome.FAILED, error=full, retryable=True))

    def parked(self, worker: str, leg: int) -> None:
        self.b.feed(
            events.LegParked(
                worker=worker, leg=leg, token_ids=(1,), task_digest=DIGEST, lease_seconds=9.0
            )
        )

    def cancel(self) -> None:
        self.b.feed(events.Cancel(1, self.dice.randint(1, max(1, self.first))))

    def worker(self) -> None:
        phase, index = self.dice.choice([*Phase]), self.dice.randint(0, 1)
        key = f"{phase.value}-{index}"
        match self.dice.choice(["down", "up", "up", "drain", "load"]):
            case "down":
                self.b.feed(events.WorkerDown(key, "gone", died=self.dice.random() < 0.3))
            case "up":
                self.b.worker(phase, index, parks=True, has_hook=self.dice.random() < 0.3)
            case "drain":
                self.b.feed(events.WorkerDraining(key, self.dice.random() < 0.5))
            case "load":
                self.b.feed(worker_load(key, self.dice.randint(0, 3)))

    def time(self) -> None:
        self.b.feed(events.Tick(), after=self.dice.choice([0.1, 1.0, 6.0]))

    def rest(self) -> None:
        """Everything that is open ends, and nothing is left."""
        self.b.feed(events.Abandon())
        for leg in list(self.b.core.state.legs.values()):
            self.b.feed(events.LegClosed(leg.worker.key, leg.number, Outcome.CANCELLED))
        assert self.b.at_rest()


@pytest.mark.promise("S2-082")
def test_in_every_order_each_half_ends_once_and_nothing_is_left() -> None:
    given = resumed = full = 0
    for seed in SEEDS:
        chance = Chance(seed)
        for _ in range(STEPS):
            chance.step()
        chance.rest()
        given += chance.given
        resumed += chance.resumed
        full += chance.full_ends
    assert given > 2 * len(SEEDS)
    assert resumed > len(SEEDS)
    assert full > len(SEEDS) // 4
