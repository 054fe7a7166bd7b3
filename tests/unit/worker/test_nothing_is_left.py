"""However requests end, hooks are told, and nothing of them stays in the worker."""

from __future__ import annotations

import random

import pytest
from scripted_engine import LIMITS
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import worker_pb2

AT_ONCE = LIMITS.max_sequences


class Remembering:
    """Keeps state by sequence, as hooks do, and behaves badly at times."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.state: dict[int, str] = {}
        self.finals: dict[int, int] = {}
        self.closed: dict[int, int] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        self.state[chunk.request_id] = chunk.text
        if chunk.is_final:
            self.finals[chunk.request_id] = self.finals.get(chunk.request_id, 0) + 1
            return emit(chunk.text_diff)
        what = self._draw.random()
        if what < 0.02:
            raise RuntimeError
        if what < 0.04:
            return terminate("enough")
        if what < 0.1:
            return suppress()
        return emit(chunk.text_diff, hold_tokens=self._draw.randint(0, 1))

    def close(self, request_id: int) -> None:
        del self.state[request_id]
        self.closed[request_id] = self.closed.get(request_id, 0) + 1


@pytest.mark.promise("S0-021", "S0-022")
@pytest.mark.parametrize(("where", "count"), [("inline", 1_000), ("later", 10_000)])
def test_ten_thousand_requests_leave_nothing(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, where: str, count: int
) -> None:
    monkeypatch.setattr(Bench, "hooks_run", where)
    hook, draw = Remembering(1), random.Random(2)
    bench = Bench(tokenizer, hook=hook)
    started = 0
    running: dict[int, int] = {}
    while started < count or running:
        while started < count and len(running) < AT_ONCE:
            started += 1
            running[bench.start(started)] = started
        steps = []
        for request, leg in running.items():
            if draw.random() < 0.05:
                bench.cancel(leg, "client")
            if request in bench.engine.open:
                end = Ending.LENGTH if draw.random() < 0.2 else None
                steps.append(delta(request, [20 + draw.randint(0, 9)], end))
        bench.step(*steps)
        bench.settle()
        running = {
            request: leg for request, leg in running.items() if bench.leg(request) is not None
        }
    assert len(bench.shell) == 0
    assert list(bench.core.legs) == []
    assert hook.state == {}
    assert hook.closed == dict.fromkeys(range(1, count + 1), 1)
    assert hook.finals == hook.closed
    assert (bench.runner.counters.sequences, bench.runner.counters.held_tokens) == (0, 0)
    closed = [event.leg for event in bench.said.events if event.HasField("closed")]
    assert sorted(closed) == list(range(1, count + 1))
    outcomes = {event.closed.outcome for event in bench.said.events if event.HasField("closed")}
    assert outcomes == {
        worker_pb2.LegClosed.OUTCOME_FINISHED,
        worker_pb2.LegClosed.OUTCOME_TERMINATED,
        worker_pb2.LegClosed.OUTCOME_CANCELLED,
        worker_pb2.LegClosed.OUTCOME_FAILED,
    }
