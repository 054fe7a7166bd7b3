"""The dashboard of restarts, drains and upgrades."""

from __future__ import annotations

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import lines, rates, table
from monitoring.queries import rate, total

_READY = PanelRow(
    "Ready and draining",
    lines(
        "Ready",
        (total("tandem_worker_ready", by="phase"), "{{phase}} workers"),
        (total("tandem_frontend_ready"), "frontends"),
        ("count(tandem_router_ready_pairs > 0)", "routers with a pair"),
    ),
    lines(
        "Draining",
        (total("tandem_worker_draining", by="phase"), "{{phase}} workers"),
        (total("tandem_frontend_draining"), "frontends"),
        (total("tandem_router_draining"), "routers"),
    ),
    lines(
        "Open on what drains",
        "sum by (phase, pod) (tandem_worker_open_legs * tandem_worker_draining) > 0",
        note="Sequences that a draining worker still has.",
    ),
)
_DRAINS = PanelRow(
    "Drains",
    lines(
        "Time of a drain",
        "max by (pod) (tandem_worker_drain_seconds) > 0",
        "max by (pod) (tandem_router_drain_seconds) > 0",
        "max by (pod) (tandem_frontend_drain_seconds) > 0",
        unit="s",
    ),
    lines(
        "Cut off at the end of a drain",
        total("tandem_worker_drain_aborted_total", by="pod"),
        total("tandem_router_drain_aborted_total", by="pod"),
        total("tandem_frontend_drain_aborted_total", by="pod"),
        note="Since the start of each process.",
    ),
    lines(
        "Streams to routers",
        total("tandem_frontend_router_streams", by="state"),
        (rate("tandem_frontend_router_reconnects_total", by="cause"), "given up: {{cause}}"),
        (rate("tandem_frontend_resubmitted_prompts_total"), "prompts submitted again"),
    ),
)
_REQUESTS = PanelRow(
    "Requests during the rollout",
    lines(
        "Failed requests",
        rate(
            'tandem_frontend_requests_total{outcome=~"draining|worker_lost|worker_error|'
            'router_lost|no_pair"}',
            by="outcome",
        ),
        unit="reqps",
        note="A rollout must leave all of these at 0.",
    ),
    lines("Retries on another pair", (rate("tandem_router_retries_total"), "retries"), unit="cps"),
    rates(
        "Sequences refused by workers",
        'tandem_worker_failed_legs_total{code=~"draining|queue_full"}',
        by="phase, code",
    ),
)
_PODS = PanelRow(
    "Pods",
    lines("Pods by version", "count by (component, version) (tandem_build_info)"),
    lines(
        "Process starts",
        "sum by (pod) (changes(process_start_time_seconds[1h])) > 0",
        note="In the last hour, in a pod that stayed.",
    ),
    table("Age of processes", "time() - max by (pod) (process_start_time_seconds)", unit="s"),
    lines(
        "Time until certificates end",
        (
            "min by (file, pod) (tandem_tls_certificate_expiry_seconds) - time()",
            "{{pod}} {{file}}",
        ),
        unit="s",
        minimum=None,
        width=24,
        height=6,
    ),
)
DASHBOARD = Dashboard(
    name="rollout",
    title="Drain and rollout",
    description="Whether workers come and go without a request noticing.",
    rows=[_READY, _DRAINS, _REQUESTS, _PODS],
)
