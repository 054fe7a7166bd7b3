"""All kinds of faults."""

from __future__ import annotations

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
