"""Workers whose engines misbehave, as the sim engine's fault switches have it, and queues that are
full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from chaotic.fleet import DRAIN_SECONDS, QUEUE, SLOTS, Fleet
from chaotic.process_faults import DECODE, LOST, PREFILL
from chaotic.trial import Kind, Row, fails, retries, stalls

_SICK_FOR_SECONDS = 3.0
_KILLED_SECONDS = 3.0
_CRASHES = 3
_STARVED_SECONDS = 60.0
_ENOUGH = 8
_RETRACTIONS = "tandem_engine_retractions_total"
_BURST = 3 * (QUEUE + 2 * SLOTS)
_FAILS = frozenset({"engine_error"})
_KV = frozenset({"kv_corrupt", "kv_transfer_failed"})


async def sick(
    fleet: Fleet, rng: Random, *, names: tuple[str, ...], engine: str, seconds: float
) -> None:
    """Workers are replaced by sick ones, and these by healthy ones after a while. One that stands
    does not drain, and is killed.
    """
    grace_seconds = _KILLED_SECONDS if "stall" in engine else DRAIN_SECONDS
    for name in names:
        await fleet.replace(name, engine=f"{engine},fault_seed={rng.randrange(1000)}")
    fleet.struck()
    await asyncio.sleep(seconds)
    for name in names:
        await fleet.replace(name, grace_seconds=grace_seconds)


async def crash(fleet: Fleet, rng: Random, *, name: str, at: str) -> None:
    """A worker that dies of one of its first requests, each time that it is started."""
    await fleet.replace(name, engine=f"fault_crash=nth:{rng.randint(2, 8)},fault_crash_at={at}")
    fleet.struck()
    for time_around in range(1, _CRASHES + 1):
        await fleet.ended(name)
        if time_around < _CRASHES:
            await fleet.start(name)
    await fleet.replace(name)


async def full(fleet: Fleet, rng: Random) -> None:
    """More requests at once than may wait."""
    fleet.struck()
    await fleet.burst(_BURST)


def _sick(
    what: str,
    name: str,
    engine: str,
    codes: frozenset[str] = frozenset(),
    shows: Callable[[Row], bool] | None = None,
) -> Kind:
    strike = partial(sick, names=(name,), engine=engine, seconds=_SICK_FOR_SECONDS)
    return Kind(name=what, strike=strike, codes=codes, shows=shows)


async def starve(fleet: Fleet, rng: Random, *, name: str, engine: str) -> None:
    """The worker's engine has too few pages for its batch, until it has put some requests off."""
    await fleet.replace(name, engine=engine)
    fleet.struck()
    async with asyncio.timeout(_STARVED_SECONDS):
        while await asyncio.to_thread(fleet.metric, name, _RETRACTIONS) < _ENOUGH:  # noqa: ASYNC110 - a process
            await asyncio.sleep(0.1)
    await fleet.replace(name)


KINDS: tuple[Kind, ...] = (
    _sick("engine stalls: prefill", PREFILL, "fault_stall=every:5", LOST["prefill"], retries),
    _sick("engine stalls: decode", DECODE, "fault_stall=every:5", LOST["decode"], fails),
    _sick("engine stalls for 0.7 s: decode", DECODE, "fault_stall=every:9,fault_stall_seconds=0.7"),
    _sick("fails at once: prefill", PREFILL, "fault_fail=after:1", _FAILS, retries),
    _sick("fails at once: decode", DECODE, "fault_fail=after:1", _FAILS, retries),
    _sick("fails now and then: decode", DECODE, "fault_fail=every:3", _FAILS, retries),
    _sick("slow: prefill", PREFILL, "fault_slow=always,fault_slow_ms=150"),
    _sick("slow: decode", DECODE, "fault_slow=always,fault_slow_ms=150"),
    _sick("KV corrupt", PREFILL, "fault_corrupt=every:2", _KV, retries),
    _sick("KV without its last page", PREFILL, "fault_withhold=every:2", _KV, retries),
    _sick("KV never handed over", PREFILL, "fault_drop=every:6", _KV, retries),
    _sick("KV 0.5 s late", PREFILL, "fault_delay=every:2,fault_delay_ms=500", shows=stalls(0.5)),
    *(
        Kind(
            name=f"crashes three times in {at}: {name.partition('_')[0]}",
            strike=partial(crash, name=name, at=at),
            codes=LOST["decode"],
        )
        for name, at in (
            (PREFILL, "prefill"),
            (PREFILL, "transfer"),
            (DECODE, "transfer"),
            (DECODE, "decode"),
        )
    ),
    Kind(name="full queue", strike=full, codes=frozenset({"queue_full"}), shows=fails),
)
STARVED: tuple[Kind, ...] = (
    Kind(
        name="KV cache too small for the batch: decode",
        strike=partial(starve, name=DECODE, engine="context_length=256,kv_cache_bytes=2097152"),
    ),
)
"""Of engines that take requests out of their batch. By vLLM's options: sixteen pages, of which
eight sequences want about forty.
"""
EIGHT = Kind(
    name="2 of 8 decode workers fail at once",
    strike=partial(
        sick,
        names=("decode_worker-0", "decode_worker-1"),
        engine="fault_fail=after:1",
        seconds=5 * _SICK_FOR_SECONDS,
    ),
    codes=_FAILS,
    shows=retries,
    most_failed=0.01,
    decode=8,
)
