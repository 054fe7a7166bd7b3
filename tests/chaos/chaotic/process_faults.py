"""Processes that are killed, stopped, restarted and replaced."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from chaotic.fleet import DRAIN_SECONDS, SILENCE_SECONDS, Fleet
from chaotic.trial import Kind, fails, resumes, stalls

PREFILL, DECODE = "prefill_worker-0", "decode_worker-0"
COMPONENTS = {"prefill": PREFILL, "decode": DECODE, "router": "router", "frontend": "frontend"}
AWAY_SECONDS = 1.5
SHORTER, LONGER = 0.5 * SILENCE_SECONDS, 2.5 * SILENCE_SECONDS
LOST = {
    "prefill": frozenset({"worker_lost", "kv_transfer_failed"}),
    "decode": frozenset({"worker_lost", "kv_transfer_failed"}),
    "router": frozenset({"router_lost"}),
    "frontend": frozenset({"connection_lost", "connection_refused", "stream_lost"}),
}
"""How a request may fail whose component is lost."""
CLOSED = frozenset({"connection_refused", "connection_lost", "draining"})
"""How one may fail that comes to the only frontend while it drains, as it closes, or before it is
back."""


async def kill(fleet: Fleet, rng: Random, *, name: str, away: float) -> None:
    """kill -9, and a start at the same address after a while."""
    fleet.struck()
    fleet.kill(name)
    await fleet.ended(name)
    await asyncio.sleep(away)
    await fleet.start(name)


async def pause(fleet: Fleet, rng: Random, *, name: str, seconds: float) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    fleet.struck()
    fleet.pause(name)
    await asyncio.sleep(seconds)
    fleet.resume(name)


async def rollout(fleet: Fleet, rng: Random, *, name: str) -> None:
    """SIGTERM, a drain, and a start at the same address."""
    fleet.struck()
    if not await fleet.end(name, grace_seconds=DRAIN_SECONDS):
        raise TimeoutError(f"{name} did not end by itself")
    await fleet.start(name)


async def kill_engine(fleet: Fleet, rng: Random, *, name: str) -> None:
    """kill -9 of the process that computes: its worker ends, and is started at the same address."""
    fleet.struck()
    fleet.engine_process(name).kill()
    await fleet.ended(name)
    await fleet.start(name)


async def pause_engine(fleet: Fleet, rng: Random, *, name: str, seconds: float) -> None:
    """SIGSTOP of the process that computes, and SIGCONT after a while."""
    engine = fleet.engine_process(name)
    fleet.struck()
    engine.suspend()
    await asyncio.sleep(seconds)
    engine.resume()


def _killed(component: str, what: str, away: float) -> Kind:
    return Kind(
        name=f"{what}: {component}",
        strike=partial(kill, name=COMPONENTS[component], away=away),
        codes=LOST[component],
        shows=None if component == "prefill" else fails,
    )


def _paused(component: str, what: str, seconds: float) -> Kind:
    noticed = seconds > SILENCE_SECONDS and component != "frontend"
    return Kind(
        name=f"SIGSTOP, SIGCONT {what}: {component}",
        strike=partial(pause, name=COMPONENTS[component], seconds=seconds),
        codes=LOST[component] if noticed else frozenset(),
        shows=stalls(0.8 * min(seconds, SILENCE_SECONDS)),
    )


def _rolled(component: str) -> Kind:
    return Kind(
        name=f"rollout (drain, restart): {component}",
        strike=partial(rollout, name=COMPONENTS[component]),
        codes=CLOSED if component == "frontend" else frozenset(),
    )


def _of_engines(component: str) -> tuple[Kind, ...]:
    codes = LOST[component] | {"engine_error"}
    name = COMPONENTS[component]
    return (
        Kind(
            name=f"kill -9 of the engine's process: {component}",
            strike=partial(kill_engine, name=name),
            codes=codes,
        ),
        Kind(
            name=f"SIGSTOP, SIGCONT of the engine's process: {component}",
            strike=partial(pause_engine, name=name, seconds=LONGER),
            codes=codes,
        ),
    )


ENGINES_PROCESS: tuple[Kind, ...] = (*_of_engines("prefill"), *_of_engines("decode"))
"""Of engines that compute in a process of their own."""

KINDS: tuple[Kind, ...] = (
    *(_killed(component, "kill -9", AWAY_SECONDS) for component in COMPONENTS),
    *(_killed(component, "kill -9, restart at once", 0.0) for component in COMPONENTS),
    *(_paused(component, f"after {SHORTER:.0f} s", SHORTER) for component in COMPONENTS),
    *(_paused(component, f"after {LONGER:.0f} s", LONGER) for component in COMPONENTS),
    *(_rolled(component) for component in COMPONENTS),
    Kind(
        name="kill -9, requests resumed: decode",
        strike=partial(kill, name=DECODE, away=AWAY_SECONDS),
        codes=LOST["decode"],
        resume=True,
        shows=resumes,
    ),
)
