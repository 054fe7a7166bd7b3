"""Looks whether SGLang has what units need (units.py), and puts units into it."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from tandem.engine.base import EngineUnit, UnitState
from tandem.errors import StartError
from tandem_sglang import mooncake
from tandem_sglang.additions import Additions
from tandem_sglang.units import UNITS, Unit

log = logging.getLogger(__name__)
_NEED = re.compile(r"([\w.{}]+):([\w.{}]+)(?:\((.*)\))?")


def look(additions: Additions) -> tuple[EngineUnit, ...]:
    """The units of an engine with these additions, and which of them the SGLang of this process has
    the names for.
    """
    found: dict[str, EngineUnit] = {}
    for unit in UNITS:
        if not unit.asked(additions):
            continue
        state, lacks = UnitState.KEPT, ""
        if unit.cured and fits(unit.cured, additions):
            state = UnitState.UNNEEDED
        elif unit.after in found and found[unit.after].lacks:
            lacks = f"the unit {unit.after}"
        else:
            lacks = lacking_name(unit, additions)
        if lacks:
            state = UnitState.LACKING
        found[unit.name] = EngineUnit(
            name=unit.name,
            promise=unit.promise,
            state=state,
            lacks=lacks,
            without=unit.without if lacks else "",
        )
    return tuple(found.values())


def check(units: Iterable[EngineUnit], additions: Additions, *, strict: bool, release: str) -> None:
    """Warn of each unit that is lacking. Raises StartError for one that this engine does not start
    without; `strict`: for any.
    """
    for unit, said in lacking(units):
        if strict or unit.needed(additions):
            do = "set engine option strict_units to false, or install" if strict else "install"
            raise StartError(
                f"SGLang {release} lacks {said.lacks}, which the unit {unit.name!r} needs"
                f" ({unit.promise}): {do} a release of SGLang that this Tandem names"
            )
        log.warning(
            "SGLang lacks what a unit needs, and the worker does without it",
            extra={"unit": unit.name, "reason": f"no {said.lacks}. {unit.without}"},
        )


def lacking(units: Iterable[EngineUnit]) -> list[tuple[Unit, EngineUnit]]:
    """The units that are lacking, with what was found."""
    by_name = {unit.name: unit for unit in UNITS}
    return [(by_name[each.name], each) for each in units if each.state is UnitState.LACKING]


def proofs(units: Iterable[EngineUnit]) -> dict[str, Any]:
    """The proofs of the units that are kept, by the units' names: see proofs.Proof."""
    kept = {each.name for each in units if each.state is UnitState.KEPT}
    return {unit.name: own(unit.proves) for unit in UNITS if unit.proves and unit.name in kept}


def withdrawn(units: Iterable[EngineUnit], otherwise: Mapping[str, str]) -> tuple[EngineUnit, ...]:
    """The units, of which those that proved `otherwise`, by name, count as lacking."""
    without = {unit.name: unit.without for unit in UNITS}
    return tuple(
        replace(
            each,
            state=UnitState.LACKING,
            lacks=f"proof of the unit ({otherwise[each.name]})",
            without=without[each.name],
        )
        if each.name in otherwise
        else each
        for each in units
    )


def left_out(units: Iterable[EngineUnit]) -> frozenset[str]:
    """The names of units that are not put in."""
    return frozenset(each.name for each in units if each.state is not UnitState.KEPT)


def lacking_name(unit: Unit, additions: Additions) -> str:
    """What of SGLang's a unit would need, and is not there; empty: all is there."""
    for need in unit.needs:
        if why := fits(need, additions):
            return why
    for name in (*unit.put, *(part for _, part in unit.parts)):
        try:
            own(name)
        except Exception as error:  # noqa: BLE001 - of SGLang: it would end the start
            return f"what {name} imports ({type(error).__name__}: {error})"
    return ""


def fits(need: str, additions: Additions) -> str:
    """What is missing of a name of SGLang's and its parameters; empty: nothing."""
    parsed = _NEED.fullmatch(named(need, additions))
    assert parsed is not None, need
    module, name, parameters = parsed.groups()
    parent, found = None, None
    try:
        found = importlib.import_module(module)
        for attribute in name.split("."):
            parent, found = found, getattr(found, attribute)
    except Exception:  # noqa: BLE001 - of SGLang: it would end the start
        return f"{module}.{name}"
    if parameters is None:
        return ""
    unlike = _unlike(parent, found, [each for each in parameters.split(", ") if each])
    return f"{module}.{name} with {unlike}" if unlike else ""


def _unlike(parent: Any, function: Any, wanted: list[str]) -> str:
    """Which parameters a function of SGLang's lacks, or asks for besides; empty: none."""
    try:
        taken = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled: it does not say
        return ""
    if inspect.isclass(parent) and inspect.isfunction(function):
        taken.pop(next(iter(taken), ""), None)  # self
    if absent := [name for name in wanted if name not in taken]:
        return f"a parameter {absent[0]}"
    more = [
        name
        for name, each in taken.items()
        if name not in wanted
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return f"no parameter {more[0]}" if more else ""


def put_in(additions: Additions, *, data_rank: int | None = None, in_worker: bool = False) -> None:
    """Put the units of a worker's own process, or of a scheduler's, into the SGLang of this one.
    Call it before an engine, or its scheduler, starts.
    """
    asked = [unit for unit in UNITS if unit.asked(additions) and unit.in_worker is in_worker]
    units = [unit for unit in asked if unit.name not in additions.left_out]
    for unit in asked:
        for name in unit.put if unit in units else unit.otherwise:
            own(name)(additions)
    for place in dict.fromkeys(of for unit in units for of, _ in unit.parts):
        module, _, name = named(place, additions).partition(":")
        made = subclass(place, units, additions, data_rank=data_rank)
        setattr(importlib.import_module(module), name, made)


def subclass(
    place: str, units: Iterable[Unit], additions: Additions, *, data_rank: int | None = None
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
