"""Puts units into SGLang (units.py)."""

from __future__ import annotations

import importlib
from typing import Any

from tandem_sglang import mooncake
from tandem_sglang.additions import Additions
from tandem_sglang.units import UNITS, Unit


def units_of(additions: Additions) -> list[Unit]:
    """The units that an engine with these additions has."""
    return [unit for unit in UNITS if unit.asked(additions)]


def put_in(additions: Additions, *, data_rank: int | None = None, in_worker: bool = False) -> None:
    """Put the units of a worker's own process, or of a scheduler's, into the SGLang of this one.
    Call it before an engine, or its scheduler, starts.
    """
    units = [unit for unit in units_of(additions) if unit.in_worker is in_worker]
    for unit in units:
        for name in unit.put:
            own(name)(additions)
    for place in dict.fromkeys(of for unit in units for of, _ in unit.parts):
        module, _, name = named(place, additions).partition(":")
        made = subclass(place, units, additions, data_rank=data_rank)
        setattr(importlib.import_module(module), name, made)


def subclass(
    place: str, units: list[Unit], additions: Additions, *, data_rank: int | None = None
) -> Any:
    """A subclass of the class of SGLang's at `place`, with the parts that units have for it."""
    module, _, name = named(place, additions).partition(":")
    base = getattr(importlib.import_module(module), name)
    parts = [own(part) for unit in units for of, part in unit.parts if of == place]
    return type(
        f"Own{name}",
        (*parts, base),
        {"__module__": __name__, "additions": additions, "data_rank": data_rank},
    )


def own(name: str) -> Any:
    """What a name of Tandem's means."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"tandem_sglang.{module}"), attribute)


def named(place: str, additions: Additions) -> str:
    """A name of SGLang's, whole."""
    kv = "mooncake" if additions.transfer_backend == mooncake.NAME else "nixl"
    whole = place.format(kv=kv, Kv=kv.capitalize())
    return f"sglang.srt{whole}" if whole.startswith(".") else whole
