"""How the router chooses among workers that could take a leg."""

from __future__ import annotations

from collections.abc import Mapping

from tandem_router.policies.base import Candidates, Policy, PolicyFactory, Prompt
from tandem_router.policies.least_loaded import LeastLoaded
from tandem_router.policies.prefix import Prefix
from tandem_router.policies.round_robin import RoundRobin

__all__ = [
    "POLICIES",
    "Candidates",
    "LeastLoaded",
    "Policy",
    "PolicyFactory",
    "Prefix",
    "Prompt",
    "RoundRobin",
]

POLICIES: Mapping[str, PolicyFactory] = {
    "prefix": Prefix,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}
"""The router's own, by the names that settings give them."""
