"""Run in a process of its own by test_sglang_units.py: what is found of SGLang where it lacks one
name after the other, and what is put in then. Prints JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sglang_units import DEFAULT

from tandem_sglang import failures, fitting
from tandem_sglang.additions import Additions, shared_numbers
from tandem_sglang.units import UNITS, Unit

WAYS = (
    DEFAULT,
    replace(DEFAULT, ranks=2, speculative=True, states=shared_numbers(2)),
    replace(DEFAULT, transfer_backend="mooncake"),
)
"""Together they ask for every unit."""


def asking(unit: Unit) -> Additions:
    return next(each for each in WAYS if unit.asked(each))


def place_of(need: str, additions: Additions) -> tuple[list[Any], str]:
    """Where a name of SGLang's is defined, a class with its bases, and the name's last part."""
    module, _, name = fitting.named(need, additions).partition("(")[0].partition(":")
    parent = importlib.import_module(module)
    *path, last = name.split(".")
    for attribute in path:
        parent = getattr(parent, attribute)
    kinds = parent.__mro__ if isinstance(parent, type) else (parent, type(parent))
    return [each for each in kinds if last in vars(each)], last


@contextmanager
def without(need: str, additions: Additions) -> Iterator[None]:
    """An SGLang without that name."""
    places, name = place_of(need, additions)
    had = [(place, vars(place)[name]) for place in places]
    for place in places:
        delattr(place, name)
    try:
        yield
    finally:
        for place, value in had:
            setattr(place, name, value)


def found_without_each_name() -> Any:
    """By unit and name: what is found to be lacking, of that unit and of others."""
    found: dict[str, dict[str, Any]] = {}
    for unit in UNITS:
        additions = asking(unit)
        for need in unit.needs:
            with without(need, additions):
                looked = fitting.look(additions)
            name = ".".join(fitting.named(need, additions).partition("(")[0].split(":"))
            found.setdefault(unit.name, {})[name] = {
                each.name: each.lacks for each in looked if each.lacks
            }
    return found


def found_whole() -> Any:
    return [sorted({each.state.value for each in fitting.look(way)}) for way in WAYS]


def called(additions: Additions, *, in_worker: bool) -> list[str]:
    """Names of Tandem's that are put in."""
    names: list[str] = []

    def own(name: str) -> Any:
        names.append(name)
        return type(name, (), {}) if name in PARTS else lambda _: None

    modules = type("Modules", (), {"__getattr__": lambda *_: _Base})()
    with (
        patch.object(fitting, "own", own),
        patch.object(importlib, "import_module", lambda _: modules),
    ):
        fitting.put_in(additions, in_worker=in_worker)
    return names


PARTS = {part for unit in UNITS for _, part in unit.parts}


class _Base:
    """In place of a class of SGLang's."""


def put_in_without_each_unit() -> Any:
    """By unit: which of its own names are put in with all units, without it, and otherwise."""
    found = {}
    for unit in UNITS:
        additions = asking(unit)
        mine = {*unit.put, *(part for _, part in unit.parts)}
        others = {
            name
            for each in UNITS
            if each is not unit and each.asked(additions) and each.in_worker is unit.in_worker
            for name in (*each.put, *(part for _, part in each.parts))
        }
        whole = called(additions, in_worker=unit.in_worker)
        less = called(replace(additions, left_out=frozenset({unit.name})), in_worker=unit.in_worker)
        found[unit.name] = {
            "whole": mine <= set(whole),
            "left": sorted((mine - others) & set(less)),
            "others": others <= set(less),
            "otherwise": set(unit.otherwise) <= set(less) and not set(unit.otherwise) & set(whole),
        }
    return found


def parameters() -> Any:
    """What is found of functions that take others than they are given."""

    class Made:
        def takes(self, batch: Any) -> None: ...
        def asks_more(self, batch: Any, other: Any) -> None: ...
        def may_take_more(self, batch: Any, other: Any = None, *more: Any, **rest: Any) -> None: ...
        def calls_it_so(self, batches: Any) -> None: ...

    with patch.object(sys.modules["sglang.srt.managers.scheduler"], "Made", Made, create=True):
        return {
            name: fitting.fits(f".managers.scheduler:Made.{name}(batch)", DEFAULT)
            for name in ("takes", "asks_more", "may_take_more", "calls_it_so", "is_not_there")
        }


def an_import_of_ours_that_fails() -> Any:
    """A name that no unit lists, and a unit's module imports."""
    seeds = next(unit for unit in UNITS if unit.name == "seeds")
    with patch.object(fitting, "own", _fail):
        return fitting.lacking_name(seeds, DEFAULT)


def _fail(name: str) -> Any:
    raise ImportError("cannot import name 'TOP_K_ALL'")


def nothing_asks_a_name_of_the_one_that_is_cured() -> Any:
    """Without what a cured release has not: the states of that unit."""
    unit = next(each for each in UNITS if each.cured)
    if fitting.fits(unit.cured, DEFAULT):
        return "unneeded"
    with without(unit.cured, DEFAULT):
        looked = fitting.look(DEFAULT)
    return next(each.state.value for each in looked if each.name == unit.name)


def failures_are_told_at_once_where_nothing_keeps_them() -> Any:
    """What is told as it is noted, before and after, and how much is kept for a result."""
    seen: list[Any] = []
    for way in ("kept", "at once"):
        told: list[Any] = []
        if way == "at once":
            failures.tell_at_once(DEFAULT)
        failures.note([2], lambda codes, step, told=told: told.append([codes, list(step)]))
        seen.append([told, len(failures.taken())])
    return seen


CHECKS: tuple[Callable[[], Any], ...] = (
    found_whole,
    found_without_each_name,
    put_in_without_each_unit,
    parameters,
    an_import_of_ours_that_fails,
    nothing_asks_a_name_of_the_one_that_is_cured,
    failures_are_told_at_once_where_nothing_keeps_them,
)

if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({check.__name__: check() for check in CHECKS}))
