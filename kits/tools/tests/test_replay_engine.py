"""The model of an engine in `tandem replay`: what takes how long, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.engine import ReplayedEngine
from tandem_tools.trace_replay.legs import HandOver, ReplayedLeg, ReplayedRequest
from tandem_tools.trace_replay.times import Times

TIMES = Times(
    prefill_ms=((0, 0.0), (1000, 1000.0)),
    step_ms=((1, 10.0), (2, 14.0), (3, 18.0)),
)
"""A millisecond a prompt token; a step of n sequences takes 6 + 4n ms."""


def leg(prompt: int = 100, output: int = 11) -> ReplayedLeg:
    request = ReplayedRequest(TracedRequest(0.0, prompt, output), 0.0)
    return ReplayedLeg(1, 1, request, cast(Any, None), cast(Any, None), prompt, (), HandOver())


@dataclass
class Bench:
    """An engine, and when what was done there, in milliseconds."""

    chunk_tokens: float = 1e9
    agenda: Agenda = field(default_factory=Agenda)
    computed: dict[ReplayedLeg, float] = field(default_factory=dict)
    generated: dict[ReplayedLeg, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = ReplayedEngine(self.agenda, TIMES, chunk_tokens=self.chunk_tokens)
        engine.uncached = lambda leg: leg.request.prompt_tokens
        engine.computed = lambda leg: self.computed.update({leg: self.agenda.now * 1000})
        engine.generated = lambda leg: self.generated.update({leg: self.agenda.now * 1000})
        self.engine = engine

    def run(self) -> None:
        self.agenda.run(lambda: True)


def test_prompts_are_computed_one_after_the_other() -> None:
    bench, first, second, third = Bench(), leg(100), leg(50), leg(10)
    for each in (first, second, third):
        bench.engine.compute(each)
    bench.run()
    assert bench.computed == pytest.approx({first: 100, second: 150, third: 160})


def test_a_sequence_alone_makes_a_token_a_step() -> None:
    bench, only = Bench(), leg()
    bench.engine.generate(only, 10)
    bench.run()
    assert bench.generated == pytest.approx({only: 100})


def test_a_sequence_that_comes_joins_at_the_end_of_the_step_and_makes_steps_longer() -> None:
    bench, first, second = Bench(), leg(), leg()
    bench.engine.generate(first, 10)
    bench.agenda.at(0.025, bench.engine.generate, second, 3)  # two and a half steps later
    bench.run()
    # 3 steps of 10 ms, 3 of 14 with both, 4 of 10
    assert bench.generated == pytest.approx({second: 30 + 42, first: 30 + 42 + 40})


def test_a_sequence_that_comes_between_two_steps_joins_the_next() -> None:
    bench, first, second = Bench(), leg(), leg()
    bench.agenda.at(0.020, bench.engine.generate, second, 1)  # before the first one's end is seen
    bench.engine.generate(first, 2)
    bench.run()
    assert bench.generated == pytest.approx({first: 20, second: 30})


def test_one_that_is_dropped_makes_steps_shorter_again() -> None:
    bench, first, second = Bench(), leg(), leg()
    bench.engine.generate(first, 5)
    bench.engine.generate(second, 50)
    bench.agenda.at(0.015, bench.engine.drop, second)
    bench.run()
    # the first step is alone, the second with both, then alone again
    assert bench.generated == pytest.approx({first: 10 + 14 + 30})


def test_a_prompt_that_waits_can_be_dropped_and_one_that_is_computed_takes_its_time() -> None:
    bench, first, second, third = Bench(), leg(100), leg(50), leg(10)
    for each in (first, second, third):
        bench.engine.compute(each)
    bench.agenda.at(0.05, bench.engine.drop, second)
    bench.run()
    assert bench.computed == pytest.approx({first: 100, third: 110})


def test_a_prompt_makes_those_that_run_wait_and_chunks_let_them_have_a_token_between() -> None:
    bench, running, prompt = Bench(chunk_tokens=50), leg(), leg(100)
    bench.engine.generate(running, 4)
    bench.agenda.at(0.005, bench.engine.compute, prompt)
    bench.run()
    # a step, two of 50 + 10 ms with a part of the prompt, and another step
    assert bench.computed == pytest.approx({prompt: 130})
    assert bench.generated == pytest.approx({running: 140})
