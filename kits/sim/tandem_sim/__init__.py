"""A deterministic engine without a model: real KV bytes over real NIXL, simulated time, and faults
on demand. docs/sim-engine.md is its manual.
"""

from tandem.engine import forms
from tandem.engine.base import EngineKit
from tandem_sim.engine import SimEngine
from tandem_sim.faults import Faults
from tandem_sim.options import SimOptions

__all__ = ["ENGINE", "SimEngine"]

ENGINE = EngineKit(
    create=SimEngine, plan_forms=forms.masked_here, options={"": SimOptions, "fault_": Faults}
)
