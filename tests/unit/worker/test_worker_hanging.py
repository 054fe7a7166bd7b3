"""Hand-overs that hang are said by the worker, in virtual time."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.worker.core.leg import LegStage
from tandem.worker.hanging import HANGS_SECONDS, Hanging


def leg(peer: str, at: float, stage: LegStage = LegStage.WAITING) -> Any:
    return SimpleNamespace(kv_peer=peer, started_at=at, stage=stage)


@pytest.mark.promise("S5-695")
def test_what_hangs_is_said_every_thirty_seconds_for_each_peer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    legs = [
        leg("p:1", 100.0),
        leg("p:1", 110.0),
        leg("p:2", 128.0),
        leg("p:3", 100.0, LegStage.RUNNING),
    ]
    hanging = Hanging("decode-0")
    said: dict[float, list[tuple[str, int, float]]] = {}
    for tick in range(100, 200):
        caplog.clear()
        hanging.look(float(tick), legs)
        if lines := [(x.peer, x.count, x.seconds) for x in caplog.records]:  # type: ignore[attr-defined]
            said[tick] = lines
    assert said == {
        130: [("p:1", 1, 30.0)],
        160: [("p:1", 2, 60.0), ("p:2", 1, 32.0)],
        190: [("p:1", 2, 90.0), ("p:2", 1, 62.0)],
    }


def test_a_worker_where_nothing_hangs_says_nothing_and_looks_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging, legs = Hanging("decode-0"), [leg("p:1", 5.0)]
    hanging.look(5.0 + HANGS_SECONDS / 2, legs)
    assert caplog.records == []
    hanging.look(5.0 + HANGS_SECONDS, legs)
    (line,) = caplog.records
    assert (line.levelname, line.worker) == ("WARNING", "decode-0")  # type: ignore[attr-defined]
