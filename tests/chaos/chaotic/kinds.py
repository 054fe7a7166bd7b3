"""All kinds of faults."""

from __future__ import annotations

from dataclasses import replace

from chaotic import (
    clock_faults,
    engine_faults,
    namespace_faults,
    network_faults,
    process_faults,
    request_faults,
    stray_faults,
)
from chaotic.trial import Kind

_BEHIND_A_START = (
    *process_faults.KINDS,
    *clock_faults.KINDS,
    *namespace_faults.KINDS,
)
"""Faults for which workers are started anew, or stand still for long."""
_AS_THEY_ARE = (*request_faults.KINDS, *network_faults.KINDS, *stray_faults.KINDS)
KINDS: tuple[Kind, ...] = (
    *_BEHIND_A_START,
    *engine_faults.KINDS,
    *_AS_THEY_ARE,
    engine_faults.EIGHT,
)
_LATE = (*process_faults.ENGINES_PROCESS, *engine_faults.STARVED, *_BEHIND_A_START)
KINDS_OF = {
    "sim": KINDS,
    "vllm": tuple(
        kind
        for kind in (
            *(replace(each, codes=each.codes | {"deadline_exceeded"}) for each in _LATE),
            *_AS_THEY_ARE,
        )
        if not kind.name.endswith("frontend")
    ),
}
"""Of an engine's stack: a real engine has no switches for faults, and takes so long to start that
the other worker may have more to do than its requests' deadlines allow.
"""
