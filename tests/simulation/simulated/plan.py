"""What a seed stands for: the fleet, the requests, and what happens to them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulated import dividing, halves, themes
from simulated.dividing import ALL_SERVE_ALL, Division
from simulated.script import LONG, RUNS, Judged, Request
from simulated.themes import BURST, RETIRE_SECONDS
from simulated.worker_process import Quirk, WorkerSpec
from tandem.wire import faces
from tandem_router.core.values import Bounds, Phase

Happening = Literal[
    "roll_worker",
    "roll_model",
    "roll_tokenizer",
    "roll_router",
    "cut_stream",
    "cut_frontend",
    "cut_worker",
    "crash_worker",
    "crash_prefill",
    "crash_decode",
    "crash_phase",
    "crash_longest",
    "crash_router",
    "crash_frontend",
    "kill_engine",
    "stall_engine",
    "pause",
    "pause_router",
    "pause_and_crash_router",
]
GRACEFUL: tuple[Happening, ...] = ("roll_worker", "roll_model", "roll_router")
FAULTS: tuple[Happening, ...] = (
    "cut_stream",
    "cut_stream",
    "cut_frontend",
    "cut_frontend",
    "crash_worker",
    "crash_worker",
    "crash_prefill",
    "crash_phase",
    "crash_router",
    "crash_frontend",
    "kill_engine",
    "kill_engine",
    "pause",
    "pause_router",
    "pause_and_crash_router",
)
SECOND_BURST = BURST + RETIRE_SECONDS + 0.05
"""When those that are replaced just begin to drain."""
LAST_REQUEST = 4.0
FAULTS_END = 7.0


@dataclass(slots=True)
class Plan:
    """Drawn from one seed. Every second seed is free of faults."""

    seed: int
    source: random.Random
    faulty: bool
    bounds: Bounds
    delays: tuple[float, ...]
    window: int
    models: tuple[str, ...]
    workers: list[WorkerSpec]
    routers: int
    frontends: int
    requests: list[Request]
    happenings: list[tuple[float, Happening]]
    engine_faults: float
    """The share of an engine's requests that it fails."""
    most_held: int
    """Rows that a decode worker holds for prefill's verdict."""
    small_messages: bool
    """What waits for a stream leaves by several messages."""
    stale_frontend: bool
    """One has another tokenizer than the workers."""
    garbled: float
    """The share of frames that workers spoil."""
    strangers: list[float]
    """When frontends come that break the protocol."""
    fickle_router: bool
    """The first router that frontends find breaks it too."""
    most_routers: int = 0
    """To how many routers each frontend keeps a stream; 0: to their one address, and any of them.
    """
    late_failures: float = 0.0
    """The share of prefill's hand-overs that fail once decode has the KV."""
    breaks_off: float = 0.01
    """The share of an output's steps at which an engine breaks it off."""
    slow_cancels: float = 0.08
    """The share of cancels that an engine takes seconds for."""
    failed_starts: float = 0.003
    """The share of legs that a router cannot say the start of."""
    garbles: float = 0.6
    """The share of frames that a worker spoils which is known for it."""
    fault_seconds: float = 60.0
    """Faults of a worker that lie further apart do not add up."""
    lease_seconds: float = 0.0
    """For so long prefill workers park KV; 0: they park none."""
    policy: str | None = None
    """How workers are chosen; None: each router draws it."""
    stall_seconds: float = 3.0
    """For so long an engine stands that goes on."""
    stalls: Phase | None = None
    """Engines of this phase do; None: of any."""
    longest: float = math.inf
    """Seconds that a request may take."""
    most_failed: int | None = None
    """Requests that may fail, of all; None: that is left to the single rules."""
    division: Division = ALL_SERVE_ALL
    """How routers divide the decode workers; most do not."""


def draw(seed: int) -> Plan:
    source = random.Random(seed)
    faulty = seed % 2 == 1
    tight = faulty and source.random() < 0.3
    bounds = Bounds(
        max_queue=source.randint(1, 12) if tight else 10_000,
        max_retries=source.randint(0, 2) if faulty else 1,
        max_regenerations=source.choice((0, 1, RUNS)) if faulty else RUNS,
        settle_seconds=source.choice((0.5, 2.0)) if faulty else 10.0,
        pair_wait_seconds=source.choice((1.0, 5.0)) if faulty else 10.0,
        pair_memory_seconds=source.choice((0.0, 3.0, 600.0)) if faulty else 600.0,
        expected_models=frozenset(random.Random(f"expected of {seed}").choice(((), (), ("m0",)))),
        eject_seconds=3.0,
        canary_seconds=random.Random(f"canaries of {seed}").choice((0.0, 1.0, 5.0, 5.0, 60.0)),
        **_ejections(random.Random(f"ejections of {seed}")),
    )
    models = ("m0", "m1")[: source.choice((1, 1, 2))]
    judged = {model: _judged(source, faulty) for model in models}
    workers = [
        WorkerSpec(
            address=f"{phase.value}-{model}-{number}:1",
            phase=phase,
            model=model,
            revision="a",
            slots=source.choice((1, 1, 2, 3)),
            judged=judged[model],
            quirk=_quirk(source, phase) if faulty and source.random() < 0.06 else "",
        )
        for model in models
        for phase in Phase
        for number in range(source.randint(1, 3))
    ]
    count = source.randint(4, 10)
    requests = [_request(source, number, models, judged, faulty) for number in range(count)]
    _share(random.Random(f"keys of {seed}"), requests)
    happenings: list[tuple[float, Happening]] = [
        (_when(source, LAST_REQUEST), source.choice(GRACEFUL))
        for _ in range(source.choice((0, 1, 1, 2)))
    ]
    if faulty:
        happenings += [
            (_when(source, FAULTS_END), source.choice(FAULTS))
            for _ in range(source.choice((0, 1, 2, 3)))
        ]
        _crowd(source, requests, happenings)
        _roll_tokenizers(random.Random(f"tokenizers of {seed}"), happenings)
        stalls = random.Random(f"stalls of {seed}")
        if stalls.random() < 0.2:
            happenings.append((_when(stalls, FAULTS_END), "stall_engine"))
    plan = Plan(
        seed=seed,
        source=source,
        faulty=faulty,
        bounds=bounds,
        delays=source.choice(((0.0005,), (0.002, 0.02), (0.001, 0.05, 0.2))),
        window=source.choice((0, 1, 4)),
        models=models,
        workers=workers,
        routers=source.choice((1, 1, 2, 2)),
        frontends=source.choice((1, 1, 2)),
        requests=requests,
        happenings=happenings,
        engine_faults=source.choice((0.01, 0.01, 0.02, 0.02, 0.02, 0.08)),
        most_held=2 if faulty and source.random() < 0.15 else 1000,
        small_messages=source.random() < 0.3,
        stale_frontend=faulty and source.random() < 0.06,
        garbled=random.Random(f"frames of {seed}").choice((0.0, 0.0, 0.0, 0.0, 0.05)),
        strangers=[_when(source, LAST_REQUEST)] if faulty and source.random() < 0.15 else [],
        most_routers=random.Random(f"links of {seed}").choice((0, 0, 1, 2, 8)),
        fickle_router=faulty and random.Random(f"routers of {seed}").random() < 0.12,
    )
    drawn = list(plan.workers)
    themes.apply(plan)
    if plan.workers == drawn:
        _aggregate(random.Random(f"aggregated of {seed}"), plan)
    apart = random.Random(f"halves of {seed}")
    if plan.most_failed is None and apart.random() < 0.3:
        plan.lease_seconds = apart.choice(halves.LEASES)
        halves.draw(apart, plan.requests, plan.lease_seconds)
    dividing.draw(random.Random(f"shares of {seed}"), plan)
    _divide_into_flows(random.Random(f"flows of {seed}"), plan.requests)
    plan.happenings.sort()
    return plan


def _aggregate(source: random.Random, plan: Plan) -> None:
    """Have models served by aggregated workers, in some worlds."""
    how = source.choice(("", "", "", "beside", "alone"))
    kinds = {each.model: each for each in plan.workers} if how else {}
    if how == "alone":
        plan.workers.clear()
    for model, like in kinds.items():
        for number in range(source.randint(1, 3)):
            address, slots = f"whole-{model}-{number}:1", source.choice((1, 1, 2, 3))
            plan.workers += [
                replace(
                    like,
                    address=faces.key(address, phase.value),
                    phase=phase,
                    slots=slots,
                    quirk="",
                    whole=address,
                )
                for phase in Phase
            ]
    if how and plan.faulty:
        for request in plan.requests:
            if source.random() < 0.1:
                request.poison = source.choice(("worker", "engine"))


def _ejections(source: random.Random) -> dict[str, Any]:
    """When a worker is ejected for its failures, and for how long; and when an engine stands."""
    return {
        "stall_seconds": (stall := source.choice((0.5, 1.5, 10.0))),
        "stall_failover_seconds": stall + source.choice((0.0, 1.0, 60.0)),
        "eject_after_failures": source.choice((0, 1, 2, 2, 3)),
        "eject_ratio": source.choice((0.3, 0.3, 1.0)),
        "eject_first_seconds": source.choice((0.2, 1.0, 3.0)),
        "eject_most_share": source.choice((0.34, 0.5, 1.0)),
    }


def _quirk(source: random.Random, phase: Phase) -> Quirk:
    """What a worker of another make, or of a wrong deployment, does otherwise."""
    quirks: tuple[Quirk, ...] = ("newer", "layout", "full")
    if phase is Phase.DECODE:
        return source.choice(("hasty", "hasty", "hasty", "garbles", "garbles", *quirks))
    return source.choice(("forgetful", "forgetful", "forgetful", "forgetful", *quirks))


def _share(source: random.Random, requests: list[Request]) -> None:
    """Requests come with keys of unlike weight, one of which asks for most; or without any."""
    if source.random() < 0.5:
        return
    keys = [(f"key{number}", source.choice((1, 1, 2, 5))) for number in range(4)]
    for request in requests:
        busy = source.random() < 0.5
        request.tenant, request.weight = keys[0] if busy else source.choice(keys)


def _divide_into_flows(source: random.Random, requests: list[Request]) -> None:
    """In some worlds requests say for whom they are, and when their first token is due."""
    if source.random() < 0.75:
        return
    for request in requests:
        request.fairness = source.choice((0, 0, 1, 2, 3))
        request.first_token_ms = source.choice((0, 0, 1, 500, 5000))


def _crowd(
    source: random.Random, requests: list[Request], happenings: list[tuple[float, Happening]]
) -> None:
    """Many requests come while a router stands still that is never to take them."""
    for at, happening in happenings:
        if happening == "pause_and_crash_router":
            for request in requests:
                if source.random() < 0.4:
                    request.at = at + source.random() * 0.2


def _roll_tokenizers(source: random.Random, happenings: list[tuple[float, Happening]]) -> None:
    if source.random() < 0.15:
        happenings.append((_when(source, LAST_REQUEST), "roll_tokenizer"))


def _when(source: random.Random, last: float) -> float:
    """Mostly while a burst of requests runs."""
    return source.random() * last if source.random() < 0.4 else BURST + source.random() ** 3 / 2


def _burst(source: random.Random) -> float:
    return source.choice((BURST, SECOND_BURST, SECOND_BURST + source.uniform(-0.1, 0.4)))


def _leaves(source: random.Random) -> float:
    return source.choice((0.0, 0.02, source.random(), 5 * source.random()))


def _judged(source: random.Random, faulty: bool) -> Judged:
    return Judged(
        prefill_hook=source.random() < 0.5,
        propagate=source.random() < 0.7,
        hook=source.random() < 0.5,
        fails=faulty and source.random() < 0.6,
        late=source.random() < 0.6,
        classifier=source.random() < 0.5,
        hold_back=source.choice(("none", "window", "all")),
        regenerations=source.randint(0, RUNS - 1),
    )


def _request(
    source: random.Random,
    number: int,
    models: tuple[str, ...],
    judged: dict[str, Judged],
    faulty: bool,
) -> Request:
    model = source.choice(models)
    burst = source.random() < 0.4
    want_ids = source.random() < 0.4
    request = Request(
        number=number,
        model=model,
        at=_burst(source) if burst else source.random() * LAST_REQUEST,
        prompts=source.choice((1, 1, 1, 2)),
        n=source.choice((1, 1, 1, 2, 3)),
        priority=source.choice((0, 0, 0, 1, -1)),
        tenant="",
        weight=1,
        streaming=source.random() < 0.7,
        want_ids=want_ids,
        want_report=source.random() < 0.2,
        timeout=source.choice((0.3, 1.0)) if faulty and source.random() < 0.08 else LONG,
        leaves_after=_leaves(source) if faulty and source.random() < 0.1 else None,
        slow=faulty and source.random() < 0.06,
        stop_at=source.randint(0, 5) if not want_ids and source.random() < 0.2 else None,
        seed=source.getrandbits(32),
        judged=judged[model],
        poison=source.choice(("worker", "engine")) if faulty and source.random() < 0.02 else "",
        poisons=source.choice(("prefill", "decode")),
    )
    own = random.Random(f"stop word of {request.seed}")  # what is drawn after it stays as it is
    request.word_at = own.randint(0, 5) if own.random() < 0.2 else None
    request.resume = own.random() < 0.5
    return request
