"""How the router chooses among workers that could take a leg."""

from __future__ import annotations

from collections.abc import Mapping

from router.policies.base import Candidates, Policy, PolicyFactory, Prompt
from router.policies.least_loaded import LeastLoaded
from router.policies.round_robin import RoundRobin

__all__ = [
    "POLICIES",
    "Candidates",
    "LeastLoaded",
    "Policy",
    "PolicyFactory",
    "Prompt",
    "RoundRobin",
]

POLICIES: Mapping[str, PolicyFactory] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}
"""The router's own, by the names that settings give them."""
