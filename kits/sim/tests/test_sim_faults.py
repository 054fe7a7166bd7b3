"""The fault switches, and which requests they hit."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_case import one_case
from quickest import quickest

from tandem.engine.base import Ending, Role
from tandem.errors import ConfigError, EngineError
from tandem_sim import runners
from tandem_sim.faults import Faults, Selector
from tandem_sim.options import SimOptions, parse


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_nth_every_and_after_hit_by_number(index: int, number: int) -> None:
    assert Selector(f"nth:{number}").hits(index, salt="") == (index == number)
    assert Selector(f"every:{number}").hits(index, salt="") == (index % number == 0)
    assert Selector(f"after:{number}").hits(index, salt="") == (index > number)


@given(st.integers(0, 2**32))
def test_a_probability_hits_its_share_the_same_each_time(seed: int) -> None:
    selector = Selector("p:0.25")
    hits = [selector.hits(index, salt=str(seed)) for index in range(1, 2001)]
    assert hits == [selector.hits(index, salt=str(seed)) for index in range(1, 2001)]
    assert 350 < sum(hits) < 650
    assert not any(Selector("p:0").hits(index, salt="") for index in range(1, 100))
    assert all(Selector("p:1").hits(index, salt="") for index in range(1, 100))


@pytest.mark.parametrize(
    "text", ["", "nth:0", "nth:x", "p:2", "p:", "p:nan", "sometimes", "after:0"]
)
def test_a_malformed_selector_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="fault_drop"):
        parse(Faults, {"fault_drop": text}, prefix="fault_")


@one_case(
    "options",
    [
        {"step": 1},
        {"step_ms": "fast"},
        {"step_ms": -1},
        {"step_ms": True},
        {"page_size": 0},
        {"page_size": 1.5},
        {"kv_bytes_per_token": 12},
        {"max_output_tokens": 1},
        {"kv_check": "sometimes"},
        {"handover_timeout_seconds": 0},
        {"kv_port": 70000},
        {"step_ms": None},
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        parse(SimOptions, options)


def test_the_manual_lists_every_option() -> None:
    manual = (Path(__file__).resolve().parents[3] / "docs" / "sim-engine.md").read_text()
    for option in dataclasses.fields(SimOptions):
        default = option.default if isinstance(option.default, str) else f"{option.default:g}"
        assert f"| `{option.name}` | {default} |" in manual
    for fault in dataclasses.fields(Faults):
        assert f"`fault_{fault.name}`" in manual


def test_options_may_be_text() -> None:
    options = parse(SimOptions, {"step_ms": "2.5", "page_size": "16"})
    assert (options.step_ms, options.page_size) == (2.5, 16)


@pytest.mark.parametrize(
    "options", [{"fault_nothing": "always"}, {"fault_crash_at": "noon"}, {"fault_slow_ms": -1}]
)
async def test_an_unknown_fault_is_refused(start: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        await start(Role.AGGREGATED, **options)


async def test_a_stalled_engine_steps_no_more_until_its_time_is_over(start: Any) -> None:
    whole = await start(Role.AGGREGATED, fault_stall="nth:2", fault_stall_seconds=0.2)
    loop = asyncio.get_running_loop()
    await whole.tokens_of(whole.ask())
    began = loop.time()
    assert len(await whole.tokens_of(whole.ask())) == 12
    assert loop.time() - began >= 0.2


@pytest.mark.promise("S5-210")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_stalled_engine_tells_how_long_ago_its_last_step_was(
    pair: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    running = getattr(pair, phase)
    await pair.tokens()
    assert running.engine.load().step_age_ms == 0, "it has nothing to do"
    running.engine.set_faults(stall="always")
    first, second = pair.ask()
    if phase == "decode":
        await running.until(lambda: second in running.said)
    await asyncio.sleep(0.01)
    now = time.monotonic()
    monkeypatch.setattr(runners, "time", SimpleNamespace(monotonic=lambda: now + 7.0))
    assert running.engine.load().step_age_ms >= 7000
    assert running.engine.load().HasField("step_age_ms")
    monkeypatch.undo()
    running.engine.set_faults()
    await pair.prefill.end_of(first)
    assert len(await pair.decode.tokens_of(second)) == 12
    await asyncio.sleep(0)
    assert running.engine.load().step_age_ms == 0, "and nothing again"


async def test_a_stall_for_ever_ends_by_cancel_or_by_switch(start: Any) -> None:
    whole = await start(Role.AGGREGATED, fault_stall="every:1")
    stalled, other = whole.ask(), whole.ask()
    await asyncio.sleep(0.05)
    assert not whole.said.get(other)
    whole.engine.cancel(other)
    assert (await whole.end_of(other))[-1].end is Ending.CANCELLED
    whole.engine.set_faults()
    assert len(await whole.tokens_of(stalled)) == 12
    assert len(await whole.tokens_of(whole.ask())) == 12


async def test_a_request_that_shall_fail_does_at_once_and_the_next_runs(start: Any) -> None:
    whole = await start(Role.AGGREGATED, fault_fail="nth:2")
    assert len(await whole.tokens_of(whole.ask())) == 12
    with pytest.raises(EngineError):
        whole.ask()
    assert len(await whole.tokens_of(whole.ask())) == 12


async def test_slow_steps_take_longer_for_all_in_the_batch(start: Any) -> None:
    whole = await start(Role.AGGREGATED, fault_slow="nth:1", fault_slow_ms=100)
    loop = asyncio.get_running_loop()
    began = loop.time()
    slow, beside = whole.ask(max_tokens=5), whole.ask(max_tokens=5)
    await whole.end_of(beside)
    await whole.end_of(slow)
    assert loop.time() - began >= 4 * 0.1
    again = await quickest(lambda: whole.tokens_of(whole.ask(max_tokens=5)), 0.2)
    assert again < 4 * 0.1


async def test_steps_come_at_their_time_and_do_not_drift(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=10)
    took = await quickest(lambda: whole.tokens_of(whole.ask(max_tokens=51, ignore_eos=True)), 0.7)
    assert 0.49 <= took < 1.5


async def test_the_load_curve_makes_steps_longer(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=0, step_ms_per_sequence=2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    numbers = [whole.ask(max_tokens=6, ignore_eos=True) for _ in range(10)]
    for number in numbers:
        await whole.end_of(number)
    assert loop.time() - began >= 5 * 0.02


async def test_prompts_take_their_time_one_after_the_other(start: Any) -> None:
    whole = await start(Role.AGGREGATED, prefill_base_ms=10, prefill_ms_per_token=0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    numbers = [whole.ask(tuple(range(100, 200)), max_tokens=1) for _ in range(3)]
    for number in numbers:
        await whole.end_of(number)
    assert loop.time() - began >= 3 * 0.03
