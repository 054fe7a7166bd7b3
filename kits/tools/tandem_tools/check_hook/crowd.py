"""A hook among many requests at once: does it mix them up, and what does it keep of them?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tandem.hooks.chain import Chain
from tandem.hooks.trial import Brought, TrialRequest
from tandem_tools.check_hook import duration, samples
from tandem_tools.check_hook.report import Check
from tandem_tools.check_hook.subject import Subject
from tandem_tools.check_hook.trials import TrialAnswer, answer, contrast, trial_answer
from tandem_tools.check_hook.weight import Weight, growth

REQUESTS = 2_000
AT_ONCE = 64
SECONDS = 6.0
"""For each half of them."""
LEAST_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Scenario:
    """A request, and what comes of it when it is alone. Without a final step: it is aborted."""

    steps: Sequence[Brought]
    alone: TrialAnswer


async def checks(subject: Subject, texts: Sequence[str]) -> AsyncIterator[Check]:
    """Two thousand requests that end in every way: final chunk, empty final chunk, abort, and what
    the hook itself ends.
    """
    scenarios = [
        Scenario(steps, await _alone(subject, steps))
        for steps in samples.in_time([end for text in texts for end in _endings(text)])
    ]
    async with subject.fresh() as (chain, probe):
        requests = _Crowd(chain, scenarios)
        await requests.run(REQUESTS // 2)
        half, before = requests.over, Weight(probe.hook)
        await requests.run(REQUESTS - REQUESTS // 2)
        after = Weight(probe.hook)
    yield _mixed(requests, [f"{what}{where}" for what, where in probe.problems.items()])
    yield _left_behind(before, after, requests.over - half)
    yield duration.of_calls(probe)


def _endings(text: str) -> list[list[Brought]]:
    chunks = samples.words(text)
    return [
        samples.steps(chunks),
        samples.steps([*chunks, ""]),
        samples.steps(chunks[: len(chunks) * 2 // 3], final=False),
    ]


async def _alone(subject: Subject, steps: Sequence[Brought]) -> TrialAnswer:
    async with subject.fresh() as (chain, _):
        return await answer(chain, steps)


def _mixed(requests: _Crowd, problems: list[str]) -> Check:
    check = Check("requests", problems=problems)
    if requests.differs is not None:
        alone, among = contrast(*requests.differs)
        check.problems.append(
            "requests are mixed up: key what you remember by chunk.request_id\n"
            f"alone: {alone}\namong others: {among}"
        )
    if not check.problems:
        check.summary = f"{requests.over:,} interleaved, {AT_ONCE} at a time, each as if alone"
    return check


def _left_behind(before: Weight, after: Weight, requests: int) -> Check:
    check = Check("left behind")
    if requests < LEAST_REQUESTS:
        check.summary = "not known: the hook is too slow for enough requests"
    elif grown := growth(before, after, requests):
        check.problems.append(
            f"{', '.join(grown)} in {requests:,} requests that are over: forget them in "
            "close(self, request_id), or on every chunk.is_final"
        )
    else:
        check.summary = "nothing of requests that are over"
    return check


class _Crowd:
    """Runs requests, many at once, and compares each with what it comes to alone."""

    def __init__(self, chain: Chain, scenarios: Sequence[Scenario]) -> None:
        self.over = 0
        self.differs: tuple[TrialAnswer, TrialAnswer] | None = None
        """The first one: alone, and among others."""
        self._chain = chain
        self._scenarios = scenarios
        self._dice = random.Random(7)
        self._next_id = 1

    async def run(self, count: int) -> None:
        """Run so many more requests, or fewer if the time is up. All are over at the end."""
        left, until = count, time.monotonic() + SECONDS
        running: list[_Run] = []
        while True:
            while left and len(running) < AT_ONCE and time.monotonic() < until:
                running.append(self._begin())
                left -= 1
            if not running:
                return
            await self._turn(running)
            for run in [run for run in running if run.over]:
                running.remove(run)
                self._compare(run)

    def _begin(self) -> _Run:
        request = TrialRequest(self._chain, request_id=self._next_id)
        self._next_id += 1
        return _Run(request, self._dice.choice(self._scenarios))

    async def _turn(self, running: Sequence[_Run]) -> None:
        if self._chain.is_async:
            await asyncio.gather(*(run.step() for run in running))
        else:
            for run in running:
                await run.step()

    def _compare(self, run: _Run) -> None:
        self.over += 1
        got = trial_answer(run.request.outputs[0])
        if got != run.scenario.alone and self.differs is None:
            self.differs = run.scenario.alone, got


class _Run:
    """One request on its way through its scenario."""

    __slots__ = ("_place", "request", "scenario")

    def __init__(self, request: TrialRequest, scenario: Scenario) -> None:
        self.request = request
        self.scenario = scenario
        self._place = 0

    @property
    def over(self) -> bool:
        return self.request.over

    async def step(self) -> None:
        """The next chunk; after the last one, the client goes away."""
        if self._place == len(self.scenario.steps):
            await self.request.abort()
            return
        await self.request.step([self.scenario.steps[self._place]])
        self._place += 1
