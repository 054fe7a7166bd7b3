"""What is kept and said of what a decode leg's engine has made; how another worker goes on from
that is in tests/unit/router_traces/resuming.txt.
"""

from __future__ import annotations

import pytest

from tandem.byte_budget import ByteBudget
from tandem.v1 import common_pb2, worker_pb2
from tandem_router import translate
from tandem_router.core import events, resuming

pytestmark = pytest.mark.promise("S5-217", "S5-218")


def test_more_than_fits_beside_a_task_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MAX_MADE_BYTES", 10)
    made_of = resuming.Made()
    allotment = ByteBudget().allotment()
    assert made_of.add(events.LegMade("w", 1, b"s" * 10, 1), allotment)
    assert not made_of.add(events.LegMade("w", 1, b"s", 1), allotment)
    assert made_of.obstacle == resuming.TOO_LONG
    assert not allotment.size


def test_nothing_but_what_was_made_is_laid_over_a_task() -> None:
    step = common_pb2.TokenLogprobs(token_id=[4, 5])
    steps = common_pb2.Resumption(step=[step]).SerializeToString()
    task = common_pb2.Task.FromString(translate.resumption(steps + steps))
    assert [list(each.token_id) for each in task.resume.step] == [[4, 5], [4, 5]]
    foreign = common_pb2.Task(model="another").SerializeToString()
    laid = common_pb2.Task.FromString(translate.resumption(foreign))
    assert not laid.model


def test_a_worker_cannot_say_more_tokens_than_bytes() -> None:
    said = worker_pb2.LegMade(steps=b"abc", tokens=2**31, obstacle="x" * 1000)
    (event,) = translate.leg_events("w", [worker_pb2.LegEvent(leg=1, made=said)])
    assert isinstance(event, events.LegMade)
    assert (event.tokens, len(event.obstacle)) == (3, 200)
