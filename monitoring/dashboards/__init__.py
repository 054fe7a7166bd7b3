"""The dashboards. Each module declares one."""

from __future__ import annotations

from monitoring.dashboard import Dashboard
from monitoring.dashboards import disaggregation, hooks, latency, overview, rollout, router

DASHBOARDS: tuple[Dashboard, ...] = (
    overview.DASHBOARD,
    latency.DASHBOARD,
    disaggregation.DASHBOARD,
    hooks.DASHBOARD,
    router.DASHBOARD,
    rollout.DASHBOARD,
)
