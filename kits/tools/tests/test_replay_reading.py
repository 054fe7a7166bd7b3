"""What reading prompts costs in `tandem replay`: processes that are waited for, and the store of
earlier prompts.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.cli import main
from tandem_router.policies import POLICIES
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay.fleet import FleetFile, Frontends, ReplayedPool
from tandem_tools.trace_replay.reading import MOST_WAITING, SMALL_TOKENS, STORED_BYTES, Readings
from tandem_tools.trace_replay.replay import Replayed, TraceReplay
from tandem_tools.trace_replay.router import LINK_SECONDS, Policies
from tandem_tools.trace_replay.times import Times

NOTHING = Times(prefill_ms=((0, 0.0),), step_ms=((1, 10.0),))
PLAIN = {"workers": 1, "processes": 1, "fresh_ms": 10.0, "known_ms": 1.0}
"""A fresh token takes 10 µs and a known one 1 µs."""
LONG = 8_192
TURN = LONG + 1_024


def run(trace: tuple[TracedRequest, ...], **frontends: object) -> Replayed:
    fleet = FleetFile(
        times=NOTHING,
        prefill=ReplayedPool(workers=1),
        decode=ReplayedPool(workers=1),
        frontends=Frontends(**{**PLAIN, **frontends}),  # type: ignore[arg-type]
    )
    least = POLICIES["least_loaded"]
    return TraceReplay(fleet, Policies(least, least), trace).run()


def readings(trace: tuple[TracedRequest, ...], **frontends: object) -> Readings:
    found = run(trace, **frontends).readings
    assert found is not None
    return found


def seconds(trace: tuple[TracedRequest, ...], **frontends: object) -> list[float]:
    """How much later first tokens come than without any reading."""
    plain, read = (
        [each.ttft or 0.0 for each in run(trace, **given).answers]
        for given in ({"workers": 0}, frontends)
    )
    return [later - sooner for sooner, later in zip(plain, read, strict=True)]


def prompts(*lengths: int, apart: float = 10_000.0) -> tuple[TracedRequest, ...]:
    """The same conversation, as far as each prompt goes, every `apart` ms."""
    return tuple(
        TracedRequest(place * apart, length, 2, tuple(range(length // 512)))
        for place, length in enumerate(lengths)
    )


def strangers(count: int, length: int = LONG) -> tuple[TracedRequest, ...]:
    """Prompts that come together and have nothing in common."""
    return tuple(TracedRequest(0.0, length, 2) for _ in range(count))


@pytest.mark.promise("S5-656")
def test_a_turn_costs_its_new_tokens_and_a_little_for_those_that_are_known() -> None:
    first, second = seconds(prompts(LONG, TURN))
    assert first == pytest.approx(LONG * 10e-6)
    assert second == pytest.approx(1_024 * 10e-6 + LONG * 1e-6)
    found = readings(prompts(LONG, TURN))
    assert found.known_rate == pytest.approx(LONG / (LONG + TURN))
    assert found.cpu_seconds == pytest.approx(first + second)


def test_without_frontends_in_the_fleet_reading_takes_no_time() -> None:
    found = run(prompts(LONG), workers=0)
    assert found.readings is None
    assert found.answers[0].ttft == pytest.approx(2 * LINK_SECONDS)


@pytest.mark.promise("S5-656")
def test_long_prompts_wait_for_a_process_and_short_ones_do_not() -> None:
    long, next_long, short = seconds((*strangers(2), *strangers(1, SMALL_TOKENS)))
    assert next_long == pytest.approx(2 * long)
    assert short == pytest.approx(SMALL_TOKENS * 10e-6)
    assert seconds(strangers(2), processes=2) == pytest.approx([long, long])
    waits = readings(strangers(2)).waits
    assert waits == pytest.approx([0.0, long])


@pytest.mark.promise("S5-656")
def test_more_prompts_than_may_wait_are_refused() -> None:
    failures = [each.failure for each in run(strangers(MOST_WAITING + 3)).answers]
    assert failures.count("queue_full") == 2
    assert failures[:-2] == [""] * (MOST_WAITING + 1)


@pytest.mark.promise("S5-656")
def test_the_store_holds_no_more_than_its_size_and_without_one_nothing_is_known() -> None:
    assert readings(prompts(LONG, LONG), store_mb=0).known_tokens == 0
    most = 2**20 // STORED_BYTES // 512 + 1  # numbers of a prompt that fills a store of 1 MiB
    other = TracedRequest(10_000.0, 512 * most, 2, tuple(range(9_000, 9_000 + most)))
    again = TracedRequest(20_000.0, LONG, 2, tuple(range(LONG // 512)))
    trace = (*prompts(LONG), other, again)
    assert readings(trace, store_mb=1).known_tokens == 0
    assert readings(trace, store_mb=2).known_tokens == LONG
    together = {"store_mb": 1, "workers": 2, "sticky": True}
    assert readings(trace, **together).known_tokens == LONG
    large = prompts(*[2 * 512 * most] * 6)
    assert 0 < readings(large, store_mb=1, workers=2).known_tokens <= 5 * 2**20 // STORED_BYTES


@pytest.mark.promise("S5-656")
def test_sessions_that_stay_on_a_frontend_find_more_than_those_that_do_not() -> None:
    trace = prompts(*range(LONG, 2 * LONG, 512))
    one, many, sticky = (
        readings(trace, **given).known_rate
        for given in ({}, {"workers": 4}, {"workers": 4, "sticky": True})
    )
    assert many < one == sticky


@pytest.mark.promise("S5-656")
def test_what_reading_took_is_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.yaml"
    text = "{prefill: {workers: 1}, decode: {workers: 1}, frontends: {workers: 1, known_ms: 0}"
    text += ", times: {prefill_ms: [[0, 1]], step_ms: [[1, 10]]}}"
    fleet.write_text(text, encoding="utf-8")
    made = ("--generate", "shared", "--requests", "50", "--policy", "prefix", "--fleet", str(fleet))
    assert main(["replay", *made, "--json"]) == 0
    shown = capsys.readouterr()
    (told,) = json.loads(shown.out)
    reading = told["reading"]
    assert reading["cpu_seconds"] > 0
    assert 0 < reading["known_rate"] < 1
    said = f"1:1 by prefix: reading took {reading['cpu_seconds'] * 1e3:.1f} ms of CPU in the mean"
    assert said in shown.err
