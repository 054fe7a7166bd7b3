"""All kinds of faults."""

from __future__ import annotations

from dataclasses import replace

from chaotic import (
    clock_faults,
    engine_faults,
    namespace_faults,
    network_faults,
    process_faults,
    stray_faults,
)
from chaotic.trial import Kind

KINDS: tuple[Kind, ...] = (
    *process_faults.KINDS,
    *engine_faults.KINDS,
    *network_faults.KINDS,
    *stray_faults.KINDS,
    *clock_faults.KINDS,
    *namespace_faults.KINDS,
    engine_faults.EIGHT,
)
_REAL = (*process_faults.ENGINES_PROCESS, *process_faults.KINDS)
KINDS_OF = {
    "sim": KINDS,
    "vllm": tuple(
        replace(kind, codes=kind.codes | {"deadline_exceeded"})
        for kind in _REAL
        if not kind.name.endswith("frontend")
    ),
}
"""Of an engine's stack: a real engine has no switches for faults, and takes so long to start that
the other worker may have more to do than its requests' deadlines allow.
"""
