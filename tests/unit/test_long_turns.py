"""`benchmarks/long_turns.py` charges each hop with its own CPU, and no hop with being measured."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PARTS = ("frontend", "router", "prefill", "decode", "reading")
WORKERS = ("prefill", "decode")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("long_turns")


def spent(
    bench: ModuleType, clock: float, *, asked: float, steps: float, reading: float | None = None
) -> Any:
    """CPU seconds of every part, of which being asked took `asked`, and of every step."""
    before = dict.fromkeys(PARTS, clock)
    if reading is not None:
        before["reading"] = reading
    taken = dict.fromkeys(bench.READING, steps)
    for part in WORKERS:
        names = (*bench.BEGINNING, "engine", "schedulers")
        taken |= {f"{part} {name}": steps for name in names}
    return bench.Spent(before, taken, {part: seconds + asked for part, seconds in before.items()})


def test_steps_are_taken_out_of_their_process_and_engines_out_of_the_sum(bench: ModuleType) -> None:
    row = bench.between(
        spent(bench, 1.0, asked=0.5, steps=0.0), spent(bench, 1.6, asked=0.7, steps=0.01)
    )  # 100 ms of each part, and 10 ms of each step
    assert [row[step] for step in bench.READING] == pytest.approx([10.0] * 5)
    assert row["reading"] == pytest.approx(50.0)
    assert row["frontend"] == row["router"] == pytest.approx(100.0)
    assert [row[step] for step in bench.BEGINNING] == pytest.approx([20.0, 20.0])
    assert row["prefill"] == row["decode"] == pytest.approx(100.0 - 20.0 - 10.0)
    assert row["engines"] == pytest.approx(2 * (10.0 + 10.0))
    assert row["all"] == pytest.approx(sum(row[hop] for hop in bench.HOPS)) == pytest.approx(480.0)


def test_a_small_body_was_read_by_the_frontend_itself(bench: ModuleType) -> None:
    first = spent(bench, 1.0, asked=0.5, steps=0.0, reading=3.0)
    last = spent(bench, 1.6, asked=0.7, steps=0.01, reading=3.5)  # no more than it was asked for
    row = bench.between(first, last)
    assert row["reading"] == pytest.approx(0.0)
    assert row["frontend"] == pytest.approx(50.0)


def test_replay_is_told_what_new_and_known_tokens_cost(bench: ModuleType) -> None:
    new = {**dict.fromkeys((*bench.READING, "reading"), 0.0), "tokenize": 100.0, "tokens": 100_000}
    turn = {**new, "tokenize": 0.3, "find": 2.0, "tokens": 100_000 + bench.NEW_TOKENS}
    said = bench.reading_cost(new, turn)
    assert said.endswith("{fresh_ms: 1.000, known_ms: 0.020}")


def test_asking_workers_for_their_engines_cpu_is_nobody_s_cost(bench: ModuleType) -> None:
    parts = dict.fromkeys(PARTS, 1.0)
    first = bench.token_cost.Snapshot(parts, dict.fromkeys(WORKERS, 0.0), dict.fromkeys(PARTS, 1.5))
    last = bench.token_cost.Snapshot(
        dict.fromkeys(PARTS, 1.6), dict.fromkeys(WORKERS, 0.04), dict.fromkeys(PARTS, 9.0)
    )
    usage = bench.token_cost.difference(first, last)
    assert usage.parts["router"] == pytest.approx(0.1)
    assert usage.parts["prefill"] == pytest.approx(0.06)
    assert usage.engine == pytest.approx(0.08)
