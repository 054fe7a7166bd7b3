"""How the time of an answer is divided."""

from __future__ import annotations

from math import inf, nan

import pytest

from tandem.timeline import PARTS, LegTimes, divide, leg_times
from tandem.v1 import common_pb2


def leg(phase: str, seconds: float, **given: float) -> LegTimes:
    return LegTimes(phase=phase, request_id=1, seconds=seconds, **given)  # type: ignore[arg-type]


@pytest.mark.promise("S5-717")
@pytest.mark.parametrize(
    ("legs", "expected"),
    [
        pytest.param([], {"other": 8.0}, id="nothing has run"),
        pytest.param(
            [
                leg("prefill", 2.0, first=2.0, queue=1.0, compute=0.5, kv=0.1, kv_bytes=9),
                leg("decode", 5.0, first=2.1, engine=4.0, room=0.4),
            ],
            {"prefill": 1.5, "kv": 0.5, "decode": 2.0, "hooks": 1.0, "other": 3.0},
            id="an engine that says what it waited for",
        ),
        pytest.param(
            [
                leg("prefill", 2.0, first=2.0, kv=0.5, kv_bytes=9),
                leg("decode", 5.0, first=2.1, engine=5.0, kv=1.9, kv_bytes=9),
            ],
            {"prefill": 1.5, "kv": 0.5, "decode": 3.0, "other": 3.0},
            id="an engine that does not",
        ),
        pytest.param(
            [leg("prefill", 3.0, first=1.0, engine=1.0, compute=1.0)],
            {"prefill": 1.0, "hooks": 2.0, "other": 5.0},
            id="prefill alone, whose hook was slow",
        ),
        pytest.param(
            [leg("decode", 3.0, first=0.5, engine=3.0, kv=0.5, kv_bytes=9)],
            {"kv": 0.5, "decode": 2.5, "other": 5.0},
            id="decode alone",
        ),
    ],
)
def test_each_second_is_in_one_part(legs: list[LegTimes], expected: dict[str, float]) -> None:
    parts = divide(11.0, read=0.25, queue=1.75, legs=legs, client=1.0)
    assert [*parts] == [*PARTS]
    given = {"read": 0.25, "queue": 1.75, "client": 1.0}
    assert {name: each for name, each in parts.items() if each} == pytest.approx(given | expected)
    assert sum(parts.values()) == pytest.approx(11.0)


def test_more_than_the_whole_leaves_nothing_for_the_rest() -> None:
    parts = divide(1.0, queue=2.0, legs=[leg("decode", 3.0, engine=3.0)])
    assert (parts["queue"], parts["decode"], parts["other"]) == (2.0, 3.0, 0.0)


def test_a_report_becomes_times_unless_it_says_what_cannot_be() -> None:
    report = common_pb2.PhaseReport(
        phase=common_pb2.PHASE_DECODE,
        request_id=7,
        phase_seconds=3,
        first_seconds=1,
        engine_seconds=2.5,
        engine=common_pb2.EngineTimes(form=0.1, queue=0.2, room=0.3, compute=0.4),
        hook_seconds=0.5,
        classifier_seconds=0.6,
        kv_seconds=0.7,
        kv_bytes=8,
        prompt_tokens=9,
        cached_tokens=4,
        tokens=5,
    )
    times = leg_times(report)
    assert times == LegTimes(
        phase="decode",
        request_id=7,
        seconds=3.0,
        first=1.0,
        engine=2.5,
        hooks=0.5,
        classifiers=0.6,
        form=0.1,
        queue=0.2,
        room=0.3,
        compute=0.4,
        kv=0.7,
        kv_bytes=8,
        prompt_tokens=9,
        cached_tokens=4,
        tokens=5,
    )
    assert (times.generating, times.computing) == (1.5, 0.4)
    for wrong in (-1.0, inf, nan):
        report.hook_seconds = wrong
        assert leg_times(report) is None
    engineless = leg("prefill", 2.0, first=1.5, kv=0.5)
    assert (engineless.computing, leg("decode", 2.0).generating) == (1.0, 0.0)
