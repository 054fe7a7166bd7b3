"""What sequences take of a worker, against a plain sum of each second."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from tandem.byte_budget import ByteBudget
from tandem.engine.base import Delta, Ending, EngineRequest
from tandem.errors import EngineError
from tandem.keys import OTHERS
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.ledger import CANARIES, Ledger, Stay
from tandem.worker.core.leg import Start
from tandem.worker.core.machine import WorkerCore
from tandem.worker.core.output import SequenceOutput
from tandem_decode_worker.rules import DecodeRules
from tandem_prefill_worker.rules import PrefillRules

PHASE = common_pb2.PHASE_PREFILL
TENANTS = ("", "a", "b")


class Plain:
    """The same accounts, summed over each stretch in which nothing changes."""

    def __init__(self) -> None:
        self.open: list[tuple[Stay, str]] = []
        self.idle = 0.0
        self.took: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def passes(self, seconds: float) -> None:
        weight = sum(stay.weight for stay, _ in self.open)
        self.idle += 0.0 if weight else seconds
        for stay, tenant in self.open:
            took = self.took[tenant]
            took[0] += seconds * stay.weight / weight if weight else 0.0
            took[1] += seconds * stay.slots
            took[2] += seconds * stay.kv_tokens


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.promise("S5-800")
def test_the_seconds_of_all_tenants_and_the_idle_ones_are_all_there_are(seed: int) -> None:
    draw, ledger, plain, now = random.Random(seed), Ledger(accounts=9), Plain(), 0.0
    ledger.read(now, PHASE)
    for _ in range(400):
        seconds = draw.choice((0.0, 1e-6, 0.01, 3.0, 900.0))
        plain.passes(seconds)
        now += seconds
        held = draw.choice(plain.open)[0] if plain.open else None
        match draw.randrange(5):
            case 0 | 1:
                tenant, weight = draw.choice(TENANTS), draw.choice((0, 1, 7, 100_000))
                stay = ledger.begin(now, PHASE, tenant, weight=weight, kv_tokens=weight)
                plain.open.append((stay, tenant))
            case 2 if held:
                ledger.weigh(now, held, draw.choice((0, 1)))
            case 3 if held:
                ledger.let_go(now, held, generated=0.0)
            case 4 if held:
                ledger.end(now, held)
                plain.open = [each for each in plain.open if each[0] is not held]
    taken = ledger.read(now, PHASE)
    assert taken.idle == pytest.approx(plain.idle)
    assert taken.idle + sum(each[0] for each in taken.tenants.values()) == pytest.approx(now)
    for tenant, took in plain.took.items():
        assert taken.tenants[tenant] == pytest.approx(took), tenant


@pytest.mark.promise("S5-800")
def test_phases_of_one_process_divide_its_time_and_processes_of_one_worker_too() -> None:
    ledger = Ledger(accounts=9, phases=2, portion=0.5)
    for phase, weight in ((1, 30), (2, 10)):
        ledger.begin(0.0, phase, "a", weight=weight, kv_tokens=0)
    found = [ledger.read(8.0, phase) for phase in (1, 2)]
    assert [each.tenants["a"][0] for each in found] == [3.0, 1.0]
    assert [each.idle for each in found] == [0.0, 0.0]
    assert [each.tenants["a"][1] for each in found] == [8.0, 8.0], "slots are whole ones"
    idle = Ledger(accounts=9, phases=2)
    idle.read(0.0, 1)
    assert [idle.read(8.0, phase).idle for phase in (1, 2)] == [4.0, 4.0]


@pytest.mark.promise("S5-801")
def test_more_tenants_than_accounts_are_counted_together() -> None:
    ledger = Ledger(accounts=2)
    for name in ("a", "b", "c", "d", "a"):
        ledger.begin(0.0, PHASE, name, weight=1, kv_tokens=0)
    tenants = ledger.read(5.0, PHASE).tenants
    assert {name: each[1] for name, each in tenants.items()} == {"a": 10, "b": 5, OTHERS: 10}


class Deaf:
    """Effects that nobody carries out."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Bench:
    """A core with one router, and the time."""

    def __init__(self, rules: Any) -> None:
        self.core = WorkerCore(
            Deaf(), rules=rules, worker="w", max_legs=9, hooked=False, budget=ByteBudget(10**9)
        )
        self.now = 0.0
        self.tell(lambda: self.core.link_up(1))

    def tell(self, happened: Any, after: float = 0.0) -> None:
        self.now += after
        for effect in self.core.handle(self.now, [happened]):
            effect()

    def start(self, number: int, *, tenant: str = "a", prompt: int = 10, **command: Any) -> None:
        start = worker_pb2.StartLeg(leg=number, sequence=number, timeout_ms=10**6, **command)
        task = common_pb2.Task(tenant=tenant, want_cost=True)
        request = EngineRequest(
            request_id=number, token_ids=[1] * prompt, sampling=common_pb2.SamplingParams()
        )
        output = SequenceOutput(detokenizer=None)
        wanted = Start(
            link=1, command=start, task=task, request=request, output=output, own_bytes=0
        )
        self.tell(lambda: self.core.start(wanted))

    def step(self, number: int, *tokens: int, after: float, end: Ending | None = None) -> None:
        delta = Delta(request_id=number, token_ids=tokens, end=end)
        self.tell(lambda: self.core.stepped([delta]), after)

    def took(self, tenant: str = "a") -> tuple[float, float, float]:
        return self.core.taken(self.now).tenants[tenant]

    def reports(self) -> list[common_pb2.PhaseReport]:
        return list(self.core.outgoing(1).draft(0).rest.report)


@pytest.mark.promise("S5-800")
def test_prefill_computes_a_prompt_until_its_first_output_and_holds_slot_and_kv_longer() -> None:
    bench = Bench(PrefillRules())
    bench.start(1, prompt=30)
    bench.start(2, tenant="b", prompt=100, to_compute=10)
    bench.step(1, 7, after=4.0)
    assert (bench.took(), bench.took("b")) == ((3, 4, 120), (1, 4, 400))
    bench.step(2, 7, after=1.0, end=Ending.LENGTH)
    bench.step(1, after=2.0, end=Ending.LENGTH)
    assert bench.took() == (3, 7, 210 + 3 / 2), "idle is who waits for the hand-over"
    assert bench.took("b") == (2, 5, 500)
    assert bench.core.taken(bench.now).idle == 2


@pytest.mark.promise("S5-800")
def test_decode_computes_a_sequence_from_its_first_output_on() -> None:
    bench = Bench(DecodeRules())
    bench.start(1, kv_peer="p:1")
    bench.start(2, tenant="", kv_peer="p:1")
    bench.start(3, kv_peer="p:1", canary=True)
    bench.step(1, 7, after=5.0)
    bench.step(2, 7, after=2.0)
    bench.step(1, 8, 9, after=4.0)
    bench.step(1, 10, after=0.0, end=Ending.STOP)
    assert bench.took() == (4, 11, 110 + 3 * 6 / 2)
    assert bench.took("")[0] == 2
    assert bench.took(CANARIES) == (0, 11, 110)
    assert bench.core.taken(bench.now).idle == 5


@pytest.mark.promise("S5-802")
def test_a_report_says_what_its_sequence_took() -> None:
    bench = Bench(DecodeRules())
    for number in (1, 2):
        bench.start(number, kv_peer="p:1")
        bench.step(number, 7, after=0.0)
    bench.step(1, 8, 9, after=4.0)
    bench.step(1, 10, after=0.0, end=Ending.STOP)
    (report,) = bench.reports()
    assert (report.worker_seconds, report.kv_token_seconds) == (2, 40 + 4 * 4 / 2)
    assert (report.phase_seconds, report.worker, report.request_id) == (4, "", 0)


@pytest.mark.promise("S5-800")
def test_what_failed_or_was_cancelled_took_its_time_too_and_gives_it_back() -> None:
    bench = Bench(PrefillRules())
    bench.start(1)
    bench.start(2)
    bench.tell(lambda: bench.core.cancel(1, 1, "gone"), after=2.0)
    bench.step(1, after=2.0, end=Ending.CANCELLED)
    bench.tell(lambda: bench.core.engine_gone(EngineError("dead")), after=2.0)
    assert bench.took() == (6, 10, 100)
    bench.tell(bench.core.tick, after=9.0)
    assert bench.took() == (6, 10, 100)
    assert bench.core.taken(bench.now).idle == 9


@pytest.mark.promise("S5-800")
def test_what_the_engine_let_go_of_is_counted_once_where_the_engine_dies_later() -> None:
    bench = Bench(DecodeRules())
    bench.start(1, kv_peer="p:1", hold_output=True)
    bench.step(1, 7, 8, after=0.0)
    bench.step(1, 9, after=4.0, end=Ending.STOP)
    took = bench.took()
    bench.tell(lambda: bench.core.engine_gone(EngineError("dead")))
    assert bench.took() == took
