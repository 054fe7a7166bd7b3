"""Clocks that step, of one process alone: libfaketime changes what it is told, never the machine's
clock.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import IO

from chaotic.fleet import Fleet
from chaotic.process_faults import CLOSED, COMPONENTS
from chaotic.trial import Kind

_UNPACKED = Path(__file__).resolve().parents[3] / "build" / "faketime"
"""Where `make chaos` unpacks Debian's package."""
_STEPS_SECONDS = (3600, -7200)
_BETWEEN_SECONDS = 2.0


def _library() -> Path | None:
    places = (Path("/usr/lib"), _UNPACKED / "usr" / "lib")
    found = (path for place in places for path in place.glob("*/faketime/libfaketime.so.1"))
    return next(found, None)


def left_out() -> str:
    """Why clocks cannot be made to step, or nothing."""
    return "" if _library() else "there is no libfaketime"


async def step(fleet: Fleet, rng: Random, *, name: str) -> None:
    """The time of day jumps forward, and back beyond where it was; the monotonic clock goes on."""
    library = _library()
    assert library is not None
    with tempfile.NamedTemporaryFile("w", suffix=".clock") as clock:
        _set(clock, "+0")
        await fleet.replace(
            name,
            LD_PRELOAD=str(library),
            FAKETIME_TIMESTAMP_FILE=clock.name,
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )
        if not _has_loaded(fleet.stack.components[name].pid, library):
            raise RuntimeError(f"{name} runs without {library}")
        fleet.struck()
        for seconds in _STEPS_SECONDS:
            _set(clock, f"{seconds:+d}")
            await asyncio.sleep(_BETWEEN_SECONDS)
        await fleet.replace(name)


def _set(clock: IO[str], offset: str) -> None:
    clock.seek(0)
    clock.truncate()
    clock.write(offset)
    clock.flush()


def _has_loaded(pid: int, library: Path) -> bool:
    return library.name in Path(f"/proc/{pid}/maps").read_text()


KINDS: tuple[Kind, ...] = tuple(
    Kind(
        name=f"clock steps 1 h on, 2 h back: {component}",
        strike=partial(step, name=name),
        codes=CLOSED if component == "frontend" else frozenset(),
        left_out=left_out,
    )
    for component, name in COMPONENTS.items()
)
