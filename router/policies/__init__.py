"""How the router chooses among workers that could take a leg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from router.policies.base import Candidates, Policy
from router.policies.least_loaded import LeastLoaded
from router.policies.round_robin import RoundRobin

__all__ = ["POLICIES", "Candidates", "LeastLoaded", "Policy", "PolicyName", "RoundRobin"]

PolicyName = Literal["round_robin", "least_loaded"]
POLICIES: dict[PolicyName, Callable[[], Policy]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
}
