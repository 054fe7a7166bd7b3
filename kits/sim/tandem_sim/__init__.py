"""A deterministic engine without a model: real KV bytes over real NIXL, simulated time, and faults
on demand. docs/sim-engine.md is its manual.
"""

from tandem.engine.sim.engine import SimEngine

__all__ = ["SimEngine"]
