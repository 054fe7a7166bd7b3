"""How long a hook takes, and whether that grows with the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median, quantiles

from tandem.hooks.piece import Piece
from tandem.hooks.trial import Brought, TrialRequest
from tandem_tools.check_hook import samples
from tandem_tools.check_hook.report import Check
from tandem_tools.check_hook.subject import Probe, Subject

BUDGET_SECONDS = 1e-3
"""For one call: it runs on the worker's path, and delays every token of the worker."""
LONG_ANSWER = 4_000
"""Chunks."""
BEGINNING = 50
"""Chunks after which an answer that is measured at its start gives way to the next."""
LONG_ANSWER_SECONDS = 5.0
GROWS_TIMES = 5.0
GROWS_SECONDS = 2e-5
"""A growth up to here is nobody's trouble."""


def of_calls(probe: Probe) -> Check:
    """Compare the time of all calls that a probe saw with the budget."""
    check = Check("time a call")
    half, high = _percentiles(probe.blocked)
    spoken = f"p50 {spell(half)}, p99 {spell(high)} ({len(probe.blocked):,} calls)"
    if probe.is_async:
        waited = "p50 {}, p99 {}".format(*map(spell, _percentiles(probe.seconds)))
        spoken = f"{waited} awaited; of that on the event loop {spoken}"
    budget = "more than 1 ms delays every token of the worker"
    if half > BUDGET_SECONDS:
        check.problems.append(f"{spoken}: {budget}")
    elif high > BUDGET_SECONDS:
        check.warnings.append(f"{spoken}: {budget}")
    else:
        check.summary = spoken
    return check


async def long_answer(subject: Subject) -> Check:
    """A call late in a long answer costs what one at an answer's start costs, at the same time: so
    whatever else the machine does, both are measured beside it.
    """
    check = Check("long answers")
    steps = _long()
    early: list[float] = []
    grown: list[float] = []
    async with subject.fresh() as (chain, probe):

        async def calls(request: TrialRequest, step: Brought) -> list[float]:
            before = len(probe.blocked)
            await request.step([step])
            return list(probe.blocked[before:])

        request, begun = TrialRequest(chain), TrialRequest(chain, request_id=2)
        until = time.monotonic() + LONG_ANSWER_SECONDS
        for number, step in enumerate(steps):
            if request.over or time.monotonic() > until:
                break
            grown += await calls(request, step)
            if number and not number % BEGINNING:
                await begun.abort()
                begun = TrialRequest(chain, request_id=2 + number)
            if not begun.over:
                early += await calls(begun, steps[number % BEGINNING])
    number = len(grown)
    if number < LONG_ANSWER // 10:
        why = "the hook ends them" if request.over else "not known: the hook is too slow"
        check.summary = f"{why} ({number:,} chunks)"
        return check
    tenth = number // 10
    begin, end = median(early[-tenth:]), median(grown[-tenth:])
    spoken = f"{spell(begin)} a call at the start, {spell(end)} after {number:,} chunks"
    if end > GROWS_TIMES * begin and end > GROWS_SECONDS:
        check.warnings.append(
            f"{spoken}: look at chunk.text_diff and what you remember, not at all of chunk.text"
        )
    else:
        check.summary = spoken
    return check


def _long() -> list[Brought]:
    chunks = samples.words(samples.STORY)
    return [
        Brought(Piece(chunks[number % len(chunks)], (number,)), number == LONG_ANSWER - 1)
        for number in range(LONG_ANSWER)
    ]


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    return median(seconds), quantiles(seconds, n=100)[98]


def spell(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms"
