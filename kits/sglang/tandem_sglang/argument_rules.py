"""Which arguments of SGLang's server an operator may give, by the tables of server_arguments.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tandem.errors import ConfigError
from tandem_sglang.server_arguments import (
    COMPANIONS,
    LOGS,
    LORA,
    LORA_ON_CPUS,
    MOONCAKE,
    NAMELESS,
    ONE_LINE_JSON,
    OWNED,
    PASSED,
    RECORDS,
    REFUSED,
    REFUSED_VALUES,
    RELEASES,
    SPACES,
    WORKS,
)


def check(given: Mapping[str, Any], *, unlisted: bool) -> None:
    """Raises ConfigError naming each argument that may not be given, and why. `unlisted`: what no
    table has may be given.
    """
    objections = [
        why for name in sorted(given) if (why := _objection(name, given[name], unlisted=unlisted))
    ]
    if objections:
        raise ConfigError(f"engine option server_args must not hold {'; '.join(objections)}")


def unlisted(given: Iterable[str]) -> list[str]:
    """The arguments that are in no table, in order."""
    return sorted({*given} - {*OWNED} - {*_REASONS} - _GIVEN)


def check_idle(given: Mapping[str, Any], *, adapters: bool, mooncake: bool) -> None:
    """Raises ConfigError for what has no effect without something else that is not there: LoRA
    adapters, a hand-over by Mooncake, or another argument.
    """
    if not adapters:
        names = [*PASSED[LORA], *WORKS[LORA_ON_CPUS]]
        _check_idle(given, names, "the setting lora_adapters is empty")
    if not mooncake:
        _check_idle(given, PASSED[MOONCAKE], "the engine option transfer_backend is not mooncake")
    if given.get("log_level") not in ("info", "debug"):
        _check_idle(given, PASSED[LOGS], "log_level, there too, is neither info nor debug")
    reported = given.get("expert_balancedness_report_mode", "off") != "off"
    if not (given.get("enable_eplb") or reported):
        needed = "neither enable_eplb nor expert_balancedness_report_mode is there"
        _check_idle(given, PASSED[RECORDS], needed)
    if given.get("grammar_backend") != "xgrammar" or given.get(ONE_LINE_JSON, True):
        needed = f"it needs the grammar_backend xgrammar, and {ONE_LINE_JSON} false"
        _check_idle(given, PASSED[SPACES], needed)
    for companions, lonely in COMPANIONS.items():
        if not any(given.get(each) for each in companions):
            _check_idle(given, lonely, f"it needs {' or '.join(companions)} beside it")


def nameless(given: Mapping[str, Any]) -> str:
    """The argument by which KV is known by its tokens alone; empty: none is given."""
    return next((name for name in NAMELESS if given.get(name)), "")


def check_adapters(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for what gives the KV of one LoRA adapter to another."""
    if name := nameless(given):
        raise ConfigError(
            f"engine option server_args must not hold {name} beside the setting lora_adapters: it"
            " knows KV by its tokens alone, so that KV of one adapter would be taken for another's"
        )


def _check_idle(given: Iterable[str], names: Iterable[str], why: str) -> None:
    if idle := sorted({*given} & {*names}):
        raise ConfigError(f"engine option server_args must not hold {', '.join(idle)}: {why}")


def _objection(name: str, value: Any, *, unlisted: bool) -> str:
    """Why `name` may not be given, or not so; empty: it may."""
    if name in OWNED:
        return f"{name}: it is set by {OWNED[name]}"
    if name in _REASONS:
        return f"{name}: {_REASONS[name]}"
    if isinstance(value, str) and (name, value.lower()) in _VALUES:
        return f"{name} {value}: {_VALUES[name, value.lower()]}"
    if name in _GIVEN or unlisted:
        return ""
    return (
        f"{name}: SGLang {RELEASES[0]} to {RELEASES[-1]} has no such argument, and only with"
        " engine option unlisted_server_args true is one of another release passed on"
    )


_REASONS = {name: reason for reason, names in REFUSED.items() for name in names}
_VALUES = {
    (name, value.lower()): reason
    for reason, values in REFUSED_VALUES.items()
    for name, value in values
}
_GIVEN = {name for table in (WORKS, PASSED) for names in table.values() for name in names}
