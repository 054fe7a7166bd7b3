"""How the two phases of an aggregated worker are told apart: it serves both at one address, and
each call says in its metadata which it means.

A router knows each of them by a key of its own, "host:port#phase".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_METADATA = "tandem-phase"
_MARK = "#"


def key(address: str, phase: str) -> str:
    """What one phase of the aggregated worker at an address is called."""
    return f"{address}{_MARK}{phase}"


def address(key: str) -> str:
    """Where a worker is dialled, whatever it serves."""
    return key.partition(_MARK)[0]


def is_one(key: str) -> bool:
    """Whether it names one phase of an aggregated worker."""
    return _MARK in key


def metadata(key: str) -> tuple[tuple[str, str], ...]:
    """What a call says that means it; nothing for a worker of one phase."""
    phase = key.partition(_MARK)[2]
    return ((_METADATA, phase),) if phase else ()


def phase_of(context: Any) -> str:
    """Which phase a call means, by its server's context; empty where it does not say."""
    said: Mapping[str, Any] = dict(context.invocation_metadata() or ())
    phase = said.get(_METADATA, "")
    return phase if isinstance(phase, str) else ""
