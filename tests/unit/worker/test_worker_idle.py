"""When a worker has no open leg, for whoever waits for that."""

from __future__ import annotations

import pytest
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.errors import EngineError
from tandem.text.tokenizer import Tokenizer


def test_a_worker_is_idle_when_its_last_leg_has_ended(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    assert bench.shell.idle.is_set()
    first, second = bench.start(1), bench.start(2)
    assert not bench.shell.idle.is_set()
    bench.step(delta(first, [20], Ending.LENGTH))
    assert not bench.shell.idle.is_set()
    bench.step(delta(second, [20], Ending.LENGTH))
    assert bench.shell.idle.is_set()
    bench.start(3)
    assert not bench.shell.idle.is_set()


def test_a_worker_whose_engine_takes_nothing_is_idle(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.engine.refuse = EngineError("full")
    bench.start(1)
    assert bench.shell.idle.is_set()


@pytest.mark.parametrize("open_legs", [0, 1])
def test_a_leg_that_is_refused_changes_nothing(tokenizer: Tokenizer, open_legs: int) -> None:
    bench = Bench(tokenizer)
    for leg in range(open_legs):
        bench.start(leg + 1)
    bench.start(9, max_tokens=0)
    assert bench.shell.idle.is_set() == (not open_legs)
