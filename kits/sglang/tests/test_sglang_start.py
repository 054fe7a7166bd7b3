"""What is done with an SGLang engine between its start and its first request. Over a scripted
start: no GPU and no SGLang.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_settings import engine_settings

from tandem.engine.base import EngineDescription, EngineUnit, Role, UnitState
from tandem.errors import StartError
from tandem.v1 import common_pb2, worker_pb2
from tandem_sglang import SglangEngine, describe, fitting, setup
from tandem_sglang.launch import Launched, SglangThread
from tandem_sglang.traffic import Traffic


class Scheduler:
    """What SGLang's tokenizer manager sends its schedulers, in order with what else happens."""

    def __init__(self) -> None:
        self.told: list[str] = []
        manager = SimpleNamespace(_dispatch_to_scheduler=self.told.append)
        given: dict[str, Any] = dict.fromkeys(field.name for field in fields(Launched))
        messages = SimpleNamespace(FreezeGCReq=lambda: "freeze")
        self.launched = Launched(
            **given | {"manager": manager, "messages": messages, "schedulers": (), "units": ()}
        )

    async def start(self) -> Launched:
        self.told.append("started")
        return self.launched

    def withdraw(self, launched: Launched, otherwise: Mapping[str, str]) -> Launched:
        units = fitting.withdrawn(launched.units, otherwise)
        return replace(launched, units=units)

    async def stop(self) -> None:
        self.told.append("stopped")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler()
    description = EngineDescription(
        fingerprint=common_pb2.Fingerprint(), limits=worker_pb2.Limits()
    )

    async def warm_up(*_: Any) -> None:
        made.told.append("warm")

    monkeypatch.setattr(setup.Setup, "thread", lambda *_, **__: (made, None))
    monkeypatch.setattr(setup.Setup, "describe", lambda *_: description)
    monkeypatch.setattr(setup.Setup, "warm_up", warm_up)
    monkeypatch.setattr(describe, "bounds", lambda *_, **__: None)
    monkeypatch.setattr(Traffic, "begin", lambda *_, **__: None)
    monkeypatch.setattr(Traffic, "ranks", lambda _: ("known",))
    return made


def engine(role: Role, **server_args: Any) -> SglangEngine:
    given = json.dumps({"disable_radix_cache": True} | server_args)
    return SglangEngine(role, engine_settings({"server_args": given}))


@pytest.mark.promise("S5-474")
@pytest.mark.parametrize("role", Role)
async def test_schedulers_are_frozen_once_they_are_warm_and_before_anybody_s_request(
    role: Role, scheduler: Scheduler
) -> None:
    """What they compiled and cached meanwhile is to be among it."""
    made = engine(role)
    await made.start()
    assert scheduler.told == ["started", "warm", "freeze"]
    await made.close()


@pytest.mark.promise("S5-474")
async def test_schedulers_that_could_not_warm_up_are_only_stopped(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise StartError("no kernel")

    monkeypatch.setattr(setup.Setup, "warm_up", fails)
    with pytest.raises(StartError, match="no kernel"):
        await engine(Role.DECODE).start()
    assert scheduler.told == ["started", "stopped"]


SEEDS = EngineUnit(name="seeds", promise="", state=UnitState.KEPT)


@pytest.mark.promise("S5-809")
async def test_what_a_unit_did_not_prove_the_engine_does_not_offer(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.launched = replace(scheduler.launched, units=(SEEDS,))
    bounded: list[Any] = []

    async def warm_up(*_: Any) -> dict[str, str]:
        return {"seeds": "seed 7 drew token 1"}

    def bounds(launched: Launched, **_: Any) -> Any:
        return [found.lacks for _, found in fitting.lacking(launched.units)]

    def describe_(_: Any, launched: Launched, limits: Any, __: Any) -> EngineDescription:
        bounded.append(limits)
        return EngineDescription(
            fingerprint=common_pb2.Fingerprint(), limits=worker_pb2.Limits(max_sequences=1)
        )

    monkeypatch.setattr(setup.Setup, "warm_up", warm_up)
    monkeypatch.setattr(setup.Setup, "describe", describe_)
    monkeypatch.setattr(describe, "bounds", bounds)
    made = engine(Role.DECODE)
    await made.start()
    ((said,),) = bounded
    assert "seed 7 drew token 1" in said
    held: Any = made._bounds
    assert held == [said]
    (unit,) = made.figures().units
    assert unit.state is UnitState.LACKING
    await made.close()


@pytest.mark.promise("S5-809")
def test_strict_units_end_a_start_by_what_a_unit_did_not_prove(scheduler: Scheduler) -> None:
    launched = replace(scheduler.launched, units=(SEEDS,), version="0.5.23")
    additions: Any = None
    for strict in (False, True):
        given: dict[str, Any] = {"kept": {}, "unequal": False, "strict": strict, "seconds": 1.0}
        thread = SglangThread({}, additions, **given)
        if strict:
            with pytest.raises(StartError, match=r"0\.5\.23 lacks proof of the unit.*token 1"):
                thread.withdraw(launched, {"seeds": "token 1"})
        else:
            (unit,) = thread.withdraw(launched, {"seeds": "token 1"}).units
            assert unit.state is UnitState.LACKING


@pytest.mark.parametrize("lingers", [0, 0.01])
@pytest.mark.parametrize("dies", [False, True])
async def test_an_engine_that_ends_while_it_warms_up_has_not_started(
    dies: bool,
    lingers: float,
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`lingers`: seconds that its own requests take to end, when they are told to."""
    warms = asyncio.Event()

    async def warm_up(*_: Any) -> None:
        warms.set()
        try:
            await asyncio.sleep(60)
        finally:
            if lingers:
                await asyncio.sleep(lingers)

    monkeypatch.setattr(setup.Setup, "warm_up", warm_up)
    made = engine(Role.DECODE)
    starting = asyncio.create_task(made.start())
    await warms.wait()
    if dies:
        made.die("a scheduler ended")
    else:
        await made.close()
    with pytest.raises(StartError, match="a scheduler ended" if dies else "closed while"):
        await asyncio.wait_for(starting, 10)


async def test_an_engine_that_closes_leaves_nothing_of_its_cache_events() -> None:
    made = engine(Role.PREFILL, disable_radix_cache=False)
    assert made._setup.cache is not None
    folder = Path(made._setup.cache.endpoint.removeprefix("ipc://")).parent
    assert folder.is_dir()
    await made.close()
    assert not folder.exists()
