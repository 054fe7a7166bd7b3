"""Recording rules: level:metric:operation. They are what the burn-rate alerts and the dashboards'
error budgets read.
"""

from __future__ import annotations

from collections.abc import Iterator

from monitoring.queries import EVERY_REQUEST, FAILED_REQUEST, quantile, rate, ratio
from monitoring.rules import Recording, RuleGroup

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
RELEASE = "namespace, job"
_RELEASE_LABELS = ("namespace", "job")
_LEVEL = "namespace_job"
_SLO = "tandem_frontend_slo_requests_total"
_BURNS = {
    "errors": (FAILED_REQUEST, EVERY_REQUEST),
    "ttft_misses": (f'{_SLO}{{ttft="missed"}}', _SLO),
    "itl_misses": (f'{_SLO}{{itl="missed"}}', _SLO),
}
REQUESTS = f"{_LEVEL}:tandem_frontend_requests:rate5m"
GOODPUT = f"{_LEVEL}:tandem_frontend_goodput:ratio_rate5m"
KV_BYTES = f"{_LEVEL}:tandem_kv_transfer_bytes:rate5m"


def burn(what: str, window: str) -> str:
    """The share of requests that was bad over a window: `errors`, `ttft_misses`, `itl_misses`."""
    return f"{_LEVEL}:tandem_frontend_{what}:ratio_rate{window}"


def _release(name: str, expression: str) -> Recording:
    return Recording(name, _RELEASE_LABELS, expression)


def _burns(what: str) -> Iterator[Recording]:
    bad, all_requests = _BURNS[what]
    for window in WINDOWS:
        expression = ratio(
            rate(bad, by=RELEASE, over=window), rate(all_requests, by=RELEASE, over=window)
        )
        yield _release(burn(what, window), expression)


def _quantile(share: float, histogram: str) -> Recording:
    name = f"{_LEVEL}:{histogram}:p{share * 100:g}_rate5m"
    return _release(name, quantile(share, histogram, by=RELEASE, over="5m"))


GROUPS = (
    RuleGroup(
        "tandem.requests",
        [
            _release(REQUESTS, rate(EVERY_REQUEST, by=RELEASE, over="5m")),
            _release(
                GOODPUT,
                ratio(
                    rate(f'{_SLO}{{ttft="met",itl="met"}}', by=RELEASE, over="5m"),
                    rate(EVERY_REQUEST, by=RELEASE, over="5m"),
                ),
            ),
            _quantile(0.99, "tandem_frontend_ttft_seconds"),
            _quantile(0.99, "tandem_frontend_itl_seconds"),
            _quantile(0.99, "tandem_frontend_request_seconds"),
        ],
    ),
    RuleGroup(
        "tandem.kv",
        [
            _release(
                KV_BYTES,
                rate('tandem_kv_transfer_bytes_total{phase="decode"}', by=RELEASE, over="5m"),
            ),
            Recording(
                f"{_LEVEL}_phase:tandem_worker_kv_tokens:ratio",
                (*_RELEASE_LABELS, "phase"),
                ratio(
                    "sum by (namespace, job, phase) (tandem_worker_kv_tokens_used)",
                    "sum by (namespace, job, phase) (tandem_worker_kv_tokens_total)",
                ),
            ),
        ],
    ),
    *(RuleGroup(f"tandem.{what}", list(_burns(what)), interval="30s") for what in _BURNS),
)
