"""Worlds with much of one kind of trouble and little of any other: chance alone would bring it too
seldom.

A theme changes a plan that is drawn, by a source of its own: seeds without one stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from simulated.script import LONG, RUNS
from tandem_router.core.values import Bounds, Phase

if TYPE_CHECKING:
    from simulated.plan import Happening, Plan
    from simulated.worker_process import WorkerSpec

BURST = 1.0
"""When many requests come at once; workers report their load at every whole second."""
HAND_OVER = 8.0
"""When a router begins to drain that has nothing open."""
RETIRE_SECONDS = 2.0
"""What is replaced stays for so long beside what comes in its place."""
SLOW = (0.001, 0.05, 0.2)
"""A network's delays."""
MANY = 80
"""Requests of a world in which a few may fail."""
SHARE, GRACEFUL_SHARE = 0.5, 0.15
"""Of seeds with faults, and of those without: so many have a theme."""


def apply(plan: Plan) -> None:
    source = random.Random(f"theme of {plan.seed}")
    share, themes = (SHARE, FAULTY) if plan.faulty else (GRACEFUL_SHARE, GRACEFUL)
    if source.random() < share:
        _calm_down(plan)
        source.choice(themes)(source, plan)


def _calm_down(plan: Plan) -> None:
    plan.happenings.clear()
    plan.strangers.clear()
    plan.engine_faults = plan.garbled = 0.0
    plan.stale_frontend = plan.fickle_router = False
    plan.workers = [replace(each, quirk="") for each in plan.workers]
    plan.bounds = replace(plan.bounds, max_retries=2)
    for request in plan.requests:
        request.timeout, request.leaves_after, request.slow, request.poison = LONG, None, False, ""
        request.judged.fails = False


def _one_pair(plan: Plan) -> tuple[WorkerSpec, WorkerSpec]:
    """One model is left, for all requests. Returns what a worker of each phase is like."""
    model = plan.models[0]
    mine = [each for each in plan.workers if each.model == model]
    prefill = next(each for each in mine if each.phase is Phase.PREFILL)
    decode = next(each for each in mine if each.phase is Phase.DECODE)
    plan.models = (model,)
    for request in plan.requests:
        request.model, request.judged = model, decode.judged
    return prefill, decode


def _alike(spec: WorkerSpec, count: int, *, slots: int) -> list[WorkerSpec]:
    return [
        replace(spec, slots=slots, address=f"{spec.phase.value}-{spec.model}-{number}:1")
        for number in range(count)
    ]


def _calm_hand_over(source: random.Random, plan: Plan) -> None:
    """A router is replaced while it has nothing open, and requests are on their way to it."""
    plan.happenings += [(HAND_OVER - RETIRE_SECONDS, "roll_router")]
    longest = max(plan.delays)
    for request in source.sample(plan.requests, k=2):
        request.at = HAND_OVER + source.uniform(-longest, longest)


def _garbling(source: random.Random, plan: Plan) -> None:
    """A part of what one worker sends, of many outputs at once, cannot be read."""
    prefill, decode = _one_pair(plan)
    garbler, sound = _alike(decode, 2, slots=8)
    plan.workers = [replace(prefill, slots=8), replace(garbler, quirk="garbles"), sound]
    plan.frontends = plan.routers = 1
    plan.garbles = 0.18
    after = Bounds().eject_after_faults
    plan.bounds = replace(plan.bounds, eject_after_faults=source.choice((after, after, 0)))
    plan.fault_seconds = source.choice((60.0, 0.3))
    judged = decode.judged
    judged.hook = judged.classifier = False
    for request in plan.requests:
        request.at = BURST * source.choice((1, 1, 2, 3, 4))
        request.n, request.streaming = 3, True


def _late_failures(source: random.Random, plan: Plan) -> None:
    """Prefill fails, or dies, once decode has its KV."""
    plan.late_failures = 0.4
    plan.delays = SLOW
    plan.happenings += [(source.uniform(0.5, 3.0), "crash_prefill") for _ in range(2)]
    held = source.random() < 0.65
    for request in plan.requests:
        judged = request.judged
        judged.prefill_hook = judged.hook = held
        judged.odd, judged.late = 0.9, False


def _short_deadlines(source: random.Random, plan: Plan) -> None:
    """Some end while their router stands still."""
    plan.happenings += [(BURST + source.uniform(0.05, 0.3), "pause_router")]
    for request in plan.requests:
        request.at = BURST
        if source.random() < 0.4:
            request.timeout = source.choice((0.3, 0.5, 0.8))


def _deaths(source: random.Random, plan: Plan) -> None:
    """Workers die on which requests of two routers run, soon after they have reported."""
    plan.routers, plan.frontends = 2, 4
    prefill, decode = _one_pair(plan)
    plan.workers = [replace(prefill, slots=9), *_alike(decode, 3, slots=3)]
    reports = (BURST, 2 * BURST)
    plan.happenings += [(at + source.uniform(0.02, 0.3), "crash_decode") for at in reports]
    for request in plan.requests:
        request.at = source.choice(reports) - source.random() * 0.2
    plan.requests[0].poison, plan.requests[0].poisons = "worker", "decode"


def _no_other_pair(source: random.Random, plan: Plan) -> None:
    """Engines fail often, and the worker that retries wait for is lost meanwhile."""
    prefill, decode = _one_pair(plan)
    plan.workers = [replace(prefill, slots=4), *_alike(decode, 2, slots=source.choice((1, 2)))]
    plan.engine_faults = 0.2
    plan.happenings += [(BURST + source.uniform(0.1, 1.0), "crash_decode") for _ in range(2)]
    for request in plan.requests:
        request.at = BURST


def _reconnects(source: random.Random, plan: Plan) -> None:
    """Streams to workers break that still hold what was cancelled with them, or others' requests,
    while many wait.
    """
    slots = 1
    if source.random() < 0.4:  # starts wait for a stream too
        slots, plan.window, plan.delays = 4, 0, SLOW
    plan.slow_cancels = 0.5
    plan.workers = [replace(each, slots=slots) for each in plan.workers]
    plan.happenings += [(BURST + source.uniform(0.1, 1.5), "cut_worker") for _ in range(4)]
    for request in plan.requests:
        request.at = BURST


def _regenerations(source: random.Random, plan: Plan) -> None:
    """Classifiers block much, and sometimes cannot judge."""
    plan.bounds = replace(plan.bounds, max_regenerations=RUNS)
    for request in plan.requests:
        judged = request.judged
        judged.classifier = judged.fails = True
        judged.hook = judged.prefill_hook = False
        judged.hold_back, judged.regenerations = "all", RUNS - 1


def _fail_fast(source: random.Random, plan: Plan) -> None:
    """Two of eight decode workers fail all that they are given, and seem to be the freest. Later
    they are well. Without retries all have moved KV before: while canaries prove one after the
    other, the failing may be all there is, and nobody ejects the last.
    """
    prefill, decode = _one_pair(plan)
    decodes = _alike(decode, 8, slots=2)
    failing = [replace(each, quirk="fails") for each in source.sample(decodes, k=2)]
    names = {each.address for each in failing}
    sound = [each for each in decodes if each.address not in names]
    plan.workers = [replace(prefill, slots=16), *failing, *sound]
    plan.frontends = plan.routers = 1
    plan.policy = source.choice(("least_loaded", "least_loaded", "round_robin", "prefix"))
    retries = source.choice((0, 1))
    plan.bounds = replace(
        plan.bounds,
        max_queue=10_000,
        max_retries=retries,
        eject_after_failures=3,
        eject_ratio=0.3,
        eject_first_seconds=1.0,
        eject_most_share=0.5,
        canary_seconds=plan.bounds.canary_seconds if retries else 0.0,
    )
    judged = decode.judged
    judged.hook = judged.prefill_hook = judged.classifier = False
    first = plan.requests[0]
    plan.requests[:] = [
        replace(first, number=number, seed=source.getrandbits(32), prompts=1, n=1, runs={})
        for number in range(MANY)
    ]
    for request in plan.requests:
        request.at = source.uniform(0.5, 5.0) if source.random() < 0.8 else source.uniform(7.5, 12)
    plan.breaks_off = plan.failed_starts = 0.0
    plan.most_held = 1000
    # Each of the two fails three legs until it is ejected, and what its other slot holds by then.
    # Until something has ended well a retry may meet the other: a request that fails takes one of
    # both.
    plan.most_failed = 3 + 1 if retries else 2 * (3 + 1 + 3) + 3


def _stalls(source: random.Random, plan: Plan) -> None:
    """An engine stands, for longer than anybody would wait."""
    prefill, decode = _one_pair(plan)
    plan.stalls = source.choice((Phase.PREFILL, Phase.DECODE))
    plan.workers = [*_alike(prefill, 3, slots=4), *_alike(decode, 3, slots=4)]
    plan.frontends = plan.routers = 1
    plan.stall_seconds = 60.0
    plan.breaks_off = plan.failed_starts = 0.0
    plan.most_held = 1000
    plan.bounds = replace(
        plan.bounds,
        max_queue=10_000,
        max_retries=1,
        stall_seconds=1.0,
        stall_failover_seconds=source.choice((1.0, 3.0)),
    )
    plan.happenings += [(BURST + source.uniform(0.0, 0.5), "stall_engine")]
    judged = decode.judged
    judged.hook = judged.prefill_hook = judged.classifier = False
    for request in plan.requests:
        request.at = BURST + source.choice((0.0, 0.0, 0.3, 4.0, 6.0))
        request.prompts = request.n = 1
    plan.longest = 12.0
    plan.most_failed = 4


def _revisions(source: random.Random, plan: Plan) -> None:
    """Workers of two revisions, one of which takes no request that may be long. Where there are
    faults, one of them may lose all its pairs while such a request waits.
    """
    prefill, decode = _one_pair(plan)
    plan.workers = [
        replace(each, address=f"{each.phase.value}-{revision}-{number}:1", revision=revision)
        for revision, context in (("short", 24), ("long", 4096))
        for spec in (prefill, decode)
        for number, each in enumerate(_alike(replace(spec, context=context), 2, slots=1))
    ]
    plan.happenings += [(BURST + source.uniform(0.0, 2.0), "roll_worker")]
    if plan.faulty:
        happenings: tuple[Happening, ...] = ("crash_longest", "crash_longest", "roll_model")
        plan.happenings += [(BURST + source.uniform(0.0, 0.3), source.choice(happenings))]
        plan.bounds = replace(plan.bounds, pair_wait_seconds=1.0)
    for request in plan.requests:
        request.at = BURST + source.choice((0.0, 0.0, 0.2, 1.0))
        request.max_tokens = source.choice((16, 40))


def _scores(source: random.Random, plan: Plan) -> None:
    """Many outputs end at once, with more scores than leave in one small frame."""
    plan.small_messages, plan.window, plan.delays = True, 0, SLOW
    plan.workers = [replace(each, slots=8) for each in plan.workers]
    for request in plan.requests:
        request.at, request.n, request.want_report = BURST, 3, True
        request.judged.classifier, request.judged.hold_back = True, "none"


def _resumes(source: random.Random, plan: Plan) -> None:
    """Decode workers die while they show outputs, which others are to go on with."""
    prefill, decode = _one_pair(plan)
    plan.workers = [*_alike(prefill, 2, slots=12), *_alike(decode, 3, slots=12)]
    plan.frontends = plan.routers = 1
    plan.breaks_off = plan.failed_starts = 0.0
    plan.most_held = 1000
    plan.happenings += [(BURST + source.uniform(0.02, 0.6), "crash_decode") for _ in range(2)]
    for request in plan.requests:
        request.at = BURST + source.uniform(0.0, 0.3)
        request.n, request.resume = source.choice((1, 1, 3)), source.random() < 0.9


Theme = Callable[[random.Random, "Plan"], None]
GRACEFUL: tuple[Theme, ...] = (_calm_hand_over, _revisions, _scores)
FAULTY: tuple[Theme, ...] = (
    _calm_hand_over,
    _garbling,
    _garbling,
    _garbling,
    _late_failures,
    _late_failures,
    _short_deadlines,
    _deaths,
    _deaths,
    _no_other_pair,
    _no_other_pair,
    _reconnects,
    _reconnects,
    _regenerations,
    _fail_fast,
    _stalls,
    _revisions,
    _revisions,
    _resumes,
    _resumes,
    _resumes,
)
