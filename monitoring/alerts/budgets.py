"""What users get: errors, and the objectives with multi-window burn rates.

A burn of 1 spends the whole error budget in 30 days; both windows must burn, so that an alert
neither comes from a single bad minute nor stays after its cause has gone (Site Reliability
Workbook, chapter 5). Below MIN_RATE requests each second one failure would be a burn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from monitoring.recording import REQUESTS, burn
from monitoring.rules import AVAILABILITY_OBJECTIVE, ITL_OBJECTIVE, TTFT_OBJECTIVE, Alert, RuleGroup

MIN_RATE = 0.02
_ENOUGH = f"and on (namespace, job) {REQUESTS} > {MIN_RATE}"


class _Burn(NamedTuple):
    factor: float
    long: str
    short: str
    after: str
    severity: Literal["critical", "warning"]
    spends: str


_BURNS = (
    _Burn(14.4, "1h", "5m", "2m", "critical", "2 % of a month's budget in an hour"),
    _Burn(6, "6h", "30m", "15m", "critical", "5 % of a month's budget in six hours"),
    _Burn(3, "1d", "2h", "1h", "warning", "10 % of a month's budget in a day"),
    _Burn(1, "3d", "6h", "3h", "warning", "10 % of a month's budget in three days"),
)


def _burn_alerts(name: str, what: str, objective: str, said: str) -> Iterator[Alert]:
    for each in _BURNS:
        bound = f"{each.factor} * (1 - {objective})"
        yield Alert(
            name=name,
            severity=each.severity,
            after=each.after,
            labels={"long_window": each.long, "short_window": each.short},
            summary=f"{said} too often in {{place}}.",
            description=f"{{{{ $value | humanizePercentage }}}} over the last {each.long}: this"
            f" spends {each.spends}.",
            expression=f"""
                {burn(what, each.long)} > {bound}
                and on (namespace, job) {burn(what, each.short)} > {bound}
                {_ENOUGH}""",
        )


def _errors(name: str, severity: Literal["critical", "warning"], share: float, after: str) -> Alert:
    return Alert(
        name=name,
        severity=severity,
        after=after,
        summary="Requests fail in {place}.",
        description="{{ $value | humanizePercentage }} of the requests of the last five minutes"
        " ended with status 5xx or queue_full.",
        expression=f"{burn('errors', '5m')} > {share}\n{_ENOUGH}",
    )


GROUPS = (
    RuleGroup(
        "tandem.errors.alerts",
        [
            _errors("TandemErrorRatioHigh", "warning", 0.05, "10m"),
            _errors("TandemErrorRatioCritical", "critical", 0.2, "5m"),
            *_burn_alerts(
                "TandemAvailabilityBudgetBurn", "errors", AVAILABILITY_OBJECTIVE, "Requests fail"
            ),
        ],
    ),
    RuleGroup(
        "tandem.latency.alerts",
        [
            *_burn_alerts(
                "TandemTtftBudgetBurn", "ttft_misses", TTFT_OBJECTIVE, "The first token is late"
            ),
            *_burn_alerts("TandemItlBudgetBurn", "itl_misses", ITL_OBJECTIVE, "Tokens are slow"),
        ],
    ),
)
