"""Networks that cut, lose, delay and change what goes through: a proxy before a component, which
needs no rights on the machine.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from chaotic.fleet import Fleet
from chaotic.process_faults import COMPONENTS, LONGER, LOST, SHORTER
from chaotic.trial import Kind, fails, stalls
from chaotic.wrong_frames import (
    Spoil,
    Spoiler,
    lost_output,
    repeated,
    unreadable,
    unreadable_output,
)

BEHIND = ("prefill", "decode", "router")
"""What has a proxy before it."""
_CUT_SECONDS = 1.5
_DELAY_SECONDS = 0.2
_DELAYED_SECONDS = 3.0
_WRONG_SECONDS = 3.0
_WRONG_SHARE = 0.05
_WRONG = frozenset({"worker_error", "worker_lost", "kv_transfer_failed"})


async def reset(fleet: Fleet, rng: Random, *, name: str) -> None:
    """Connections are reset, and may be opened again at once."""
    fleet.struck()
    fleet.proxies[name].reset()


async def cut(fleet: Fleet, rng: Random, *, name: str) -> None:
    """Connections are reset, and refused for a while."""
    fleet.struck()
    fleet.proxies[name].cut()
    await asyncio.sleep(_CUT_SECONDS)
    fleet.proxies[name].restore()


async def hold(fleet: Fleet, rng: Random, *, name: str, seconds: float) -> None:
    """Nothing comes through, and nobody is told."""
    fleet.struck()
    fleet.proxies[name].hold()
    await asyncio.sleep(seconds)
    fleet.proxies[name].restore()


async def delay(fleet: Fleet, rng: Random, *, names: tuple[str, ...]) -> None:
    """All comes later, on each way, by the same time."""
    fleet.struck()
    for name in names:
        fleet.proxies[name].delay = _DELAY_SECONDS
    await asyncio.sleep(_DELAYED_SECONDS)
    for name in names:
        fleet.proxies[name].restore()


async def inject(fleet: Fleet, rng: Random, *, name: str) -> None:
    """Bytes that the component never sent, in the middle of what it sends."""
    fleet.struck()
    for _ in range(3):
        fleet.proxies[name].inject(rng.randbytes(rng.randint(1, 2000)))
        await asyncio.sleep(1.0)


async def spoil(fleet: Fleet, rng: Random, *, name: str, how: Spoil) -> None:
    """The worker's frames are spoilt on streams that begin now."""
    proxy = fleet.proxies[name]
    proxy.answers = lambda: Spoiler(how, rng, share=_WRONG_SHARE)
    proxy.reset()
    fleet.struck()
    await asyncio.sleep(_WRONG_SECONDS)
    proxy.restore()
    proxy.reset()


def _wrong(what: str, how: Spoil, *codes: str) -> Kind:
    strike = partial(spoil, name=COMPONENTS["decode"], how=how)
    return Kind(name=f"wrong frames: {what}", strike=strike, codes=_WRONG | {*codes}, shows=fails)


KINDS: tuple[Kind, ...] = (
    *(
        Kind(
            name=f"connections reset: {component}",
            strike=partial(reset, name=COMPONENTS[component]),
            codes=LOST[component],
        )
        for component in BEHIND
    ),
    *(
        Kind(
            name=f"network cut for {_CUT_SECONDS} s: {component}",
            strike=partial(cut, name=COMPONENTS[component]),
            codes=LOST[component],
        )
        for component in BEHIND
    ),
    *(
        Kind(
            name=f"network silent for {seconds:.0f} s: {component}",
            strike=partial(hold, name=COMPONENTS[component], seconds=seconds),
            codes=LOST[component] if seconds == LONGER else frozenset(),
            shows=stalls(0.8 * SHORTER),
        )
        for seconds in (SHORTER, LONGER)
        for component in BEHIND
    ),
    Kind(
        name=f"network {_DELAY_SECONDS} s slow: all workers",
        strike=partial(
            delay,
            names=("prefill_worker-0", "prefill_worker-1", "decode_worker-0", "decode_worker-1"),
        ),
        shows=stalls(2 * _DELAY_SECONDS),
    ),
    Kind(
        name=f"network {_DELAY_SECONDS} s slow: router",
        strike=partial(delay, names=("router",)),
        shows=stalls(2 * _DELAY_SECONDS),
    ),
    *(
        Kind(
            name=f"bytes injected: {component}",
            strike=partial(inject, name=COMPONENTS[component]),
            codes=LOST[component],
        )
        for component in BEHIND
    ),
    _wrong("unreadable", unreadable),
    _wrong("unreadable output", unreadable_output),
    _wrong("lost output", lost_output, "deadline_exceeded"),  # where it was the last
    _wrong("repeated", repeated),
)
