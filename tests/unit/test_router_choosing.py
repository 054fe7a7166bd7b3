"""Which policies choose, and what an operator's may do without harm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated import submits
from test_router_policies import PROMPT, free, worker

from tandem.errors import ConfigError, LoadError
from tandem_router import choosing
from tandem_router.choosing import Choosing, Failure
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.free import FreeWorkers
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Phase
from tandem_router.core.worker import Worker
from tandem_router.discovery import StaticDiscovery
from tandem_router.metrics import new_registry, read
from tandem_router.policies import LeastLoaded, Prompt, RoundRobin
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers

HERE = __name__
OTHER = worker("z")


class Longest:
    """Long prompts to the last address, short ones to the first."""

    def choose(self, candidates: FreeWorkers, prompt: Prompt) -> Worker:
        by_address = [*candidates.by_address()]
        return by_address[-1 if prompt.tokens > 50 else 0]


class Unmade:
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Chooses:
    """Does what `does` says, and counts how often it was asked."""

    does: Callable[[FreeWorkers], Any]
    asked = 0

    def choose(self, candidates: FreeWorkers, prompt: Prompt) -> Any:
        Chooses.asked += 1
        return Chooses.does(candidates)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers policies, as an installer leaves it."""
    info = tmp_path / "acme_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-policies\nVersion: 1.0\n")
    names = {"longest": "Longest", "unmade": "Unmade", "chooses": "Chooses", "none": "OTHER"}
    points = "".join(f"{name} = {HERE}:{found}\n" for name, found in names.items())
    (info / "entry_points.txt").write_text(f"[tandem.router_policies]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    Chooses.asked = 0


def started(core: RouterCore, prompt_tokens: int) -> str:
    """The prefill worker of a request with so long a prompt."""
    submit = submits.submit(
        prompt_tokens,
        n=1,
        model="tiny",
        tokenizer_sha256="sha",
        timeout_seconds=60.0,
        task=b"t",
        prompt_tokens=prompt_tokens,
    )
    done = core.handle(0.0, [submit])
    return next(each.worker for each in done if isinstance(each, actions.StartLeg))


@pytest.mark.promise("S5-253")
def test_a_package_s_policy_chooses_by_what_a_request_is() -> None:
    core = build_core(RouterConfig(prefill_policy="longest"))
    core.handle(0.0, [events.FrontendUp(1)])
    for phase, keys in ((Phase.PREFILL, "abc"), (Phase.DECODE, "d")):
        for key in keys:
            profile = replace(worker(key, capacity=8).profile, phase=phase, kv_endpoint=key)
            core.handle(0.0, [events.WorkerUp(worker=key, listed_as=phase, profile=profile)])
    assert [started(core, tokens) for tokens in (51, 50, 60)] == ["c", "a", "c"]


def test_the_router_s_own_policies_need_no_package_and_no_guard() -> None:
    choosing = Choosing("round_robin", "least_loaded", seconds=1.0)
    assert (choosing.prefill, choosing.decode) == (RoundRobin, LeastLoaded)


@pytest.mark.promise("S5-253")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nearest", "no policy of the router's \\(prefix, least_loaded, round_robin\\): no inst"),
        ("prefix", "decode computes no prompts"),
        ("unmade", "'unmade' cannot be made: RuntimeError: no licence"),
        ("none", "'none' cannot be made: TypeError"),
    ],
)
def test_a_router_does_not_start_without_the_policy_that_it_is_to_use(name: str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        build_core(RouterConfig(decode_policy=name))


def test_a_policy_s_time_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="policy_seconds must be above 0"):
        RouterConfig(policy_seconds=0)


def _raise(_: FreeWorkers) -> None:
    raise ValueError("the prompt's own text")


def _exit(_: FreeWorkers) -> None:
    raise SystemExit(1)


def _late(_: FreeWorkers) -> None:
    while True:
        pass


@pytest.mark.promise("S5-253")
@pytest.mark.parametrize(
    ("does", "failure", "reason"),
    [
        (_raise, Failure.RAISED, "ValueError at test_router_choosing.py"),
        (_exit, Failure.RAISED, "SystemExit at test_router_choosing.py"),
        (lambda _: None, Failure.ANSWER, "NoneType"),
        (lambda _: "a", Failure.ANSWER, "str"),
        (lambda _: OTHER, Failure.ANSWER, "Worker"),
        (_late, Failure.OVERDUE, "OverdueError"),
    ],
)
async def test_where_a_package_s_policy_fails_least_loaded_chooses_and_it_is_said(
    does: Callable[[FreeWorkers], Any],
    failure: Failure,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Chooses.does = does
    seconds = 0.02 if failure is Failure.OVERDUE else 60.0
    choosing = Choosing("least_loaded", "chooses", seconds=seconds)
    workers = free(worker("a", 1), worker("b"))
    with caplog.at_level(logging.WARNING):
        assert choosing.decode().choose(workers, PROMPT).key == "b"
    assert choosing.failures == {(Phase.DECODE, failure): 1}
    (line,) = caplog.records
    assert line.__dict__["phase"] == "decode"
    assert line.__dict__["reason"].startswith(reason)
    assert "own text" not in caplog.text
    choosing.close()


async def test_a_policy_that_failed_once_is_asked_again() -> None:
    Chooses.does = _raise
    choosing = Choosing("least_loaded", "chooses", seconds=1.0)
    policy, workers = choosing.decode(), free(worker("a", 1), worker("b"))
    policy.choose(workers, PROMPT)
    Chooses.does = lambda candidates: next(candidates.by_address())
    assert policy.choose(workers, PROMPT).key == "a"
    choosing.close()


@pytest.mark.promise("S5-253")
async def test_a_policy_that_was_late_rests_a_hundred_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(choosing, "perf_counter", lambda: now)
    Chooses.does = _late
    chosen_by = Choosing("least_loaded", "chooses", seconds=0.02)
    policy, workers = chosen_by.decode(), free(worker("a", 1), worker("b"))
    for _ in range(3):
        assert policy.choose(workers, PROMPT).key == "b"
    assert (Chooses.asked, sum(chosen_by.failures.values())) == (1, 1)
    now += 1.9
    policy.choose(workers, PROMPT)
    assert Chooses.asked == 1
    now += 60.0
    policy.choose(workers, PROMPT)
    assert Chooses.asked == 2
    chosen_by.close()


def test_who_may_be_chosen_is_a_candidate_and_nobody_else() -> None:
    mine, avoided, again = worker("a"), worker("b"), worker("a")
    (index,) = free(mine, avoided)._indexes
    candidates = FreeWorkers([index], [avoided])
    assert mine in candidates
    for each in (avoided, again, OTHER, None, "a", SimpleNamespace(key="a")):
        assert each not in candidates


def test_after_a_failure_who_has_failed_lately_is_no_candidate_unless_all_have() -> None:
    sound, failed = worker("b", 2), worker("a")
    failed.trust.count_failure()
    candidates = FreeWorkers([free(sound, failed)._indexes[0]], again=True)
    assert [*candidates.by_load()] == [*candidates.by_address()] == [sound]
    assert sound in candidates
    assert failed not in candidates
    sound.trust.count_failure()
    assert [*candidates.by_load()] == [failed, sound]
    assert failed in candidates


async def test_failures_are_a_metric_from_the_start() -> None:
    relay = Relay(build_core(RouterConfig()))
    workers = Workers(StaticDiscovery(prefill=(), decode=()), relay, silence_seconds=1)
    choosing = Choosing("least_loaded", "chooses", seconds=1.0)
    choosing.failures[Phase.DECODE, Failure.OVERDUE] = 3
    registry = new_registry(lambda: read(relay, workers, choosing))
    name = "tandem_router_policy_failures_total"
    values = {
        (phase, reason): registry.get_sample_value(name, {"phase": phase, "reason": reason})
        for phase in ("prefill", "decode")
        for reason in ("raised", "overdue", "answer")
    }
    assert values.pop(("decode", "overdue")) == 3.0
    assert set(values.values()) == {0.0}
