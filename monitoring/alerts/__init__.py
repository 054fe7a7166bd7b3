"""The alert rules, by what they watch. Each has a page in docs/runbooks."""

from __future__ import annotations

from monitoring.alerts import budgets, disaggregation, fleet, user_code
from monitoring.rules import Alert

GROUPS = (*fleet.GROUPS, *budgets.GROUPS, *disaggregation.GROUPS, *user_code.GROUPS)
ALERTS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
