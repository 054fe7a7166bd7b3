"""The dashboard of the router: admission, pairing and relay."""

from __future__ import annotations

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import heatmap, lines, percentiles, rates, shares, stat
from monitoring.queries import rate, ratio, total

_ADMISSION = PanelRow(
    "Admission",
    lines("Queue", "sum by (pod) (tandem_router_queue_length)"),
    percentiles("Wait for a pair", "tandem_router_queue_seconds"),
    heatmap("Wait for a pair, distribution", "tandem_router_queue_seconds"),
    rates(
        "Requests by outcome",
        "tandem_router_requests_total",
        by="outcome",
        above_zero=True,
        unit="reqps",
        stacked=True,
    ),
    lines(
        "Retries",
        (rate("tandem_router_retries_total"), "on another pair"),
        (rate("tandem_router_requeued_total"), "queued again"),
        unit="cps",
    ),
    rates(
        "Cancelled sequences by reason", "tandem_router_cancels_total", by="reason", above_zero=True
    ),
)
_PAIRING = PanelRow(
    "Pairs",
    stat(
        "Pairs that take work",
        "max(tandem_router_ready_pairs)",
        thresholds=[(0, "red"), (1, "green")],
        height=8,
    ),
    lines(
        "Routable workers",
        ("max by (phase) (tandem_router_routable_workers)", "routable {{phase}}"),
        (
            "max by (phase) (count by (phase, pod) (tandem_router_worker_slots))",
            "connected {{phase}}",
        ),
        width=10,
        note="The most of one router. A connected worker that is not routable drains, fits no"
        " worker of the other phase, or no canary has moved KV to or from it.",
    ),
    rates(
        "Ways of sequences",
        "tandem_router_ways_total",
        by="way, reason",
        above_zero=True,
        stacked=True,
        width=24,
        note="Through a pair or an aggregated worker, and why.",
    ),
    lines(
        "Pairs rejected, by the first field that differs",
        "sum by (reason) (tandem_router_pair_rejected_total) > 0",
        width=10,
        note="Since the router's start.",
    ),
    shares(
        "Slots in use by worker",
        ratio(
            "sum by (phase, worker) (tandem_router_worker_open_legs)",
            "max by (phase, worker) (tandem_router_worker_slots)",
        ),
        note="Sum of all routers.",
    ),
    rates(
        "How sequences ended on workers",
        "tandem_router_legs_total",
        by="phase, outcome",
        above_zero=True,
    ),
    lines(
        "Overdue sequences",
        "max by (phase, worker) (tandem_router_worker_overdue_legs) > 0",
        (rate("tandem_router_settle_overdue_total"), "new each second"),
    ),
    lines(
        "Legs that failed by a worker's own doing",
        rate("tandem_router_worker_failures_total", by="phase, worker") + " > 0",
        (
            "max by (phase, worker) (tandem_router_worker_ejected) > 0",
            "{{phase}} {{worker}} ejected",
        ),
        unit="cps",
        note="An ejected worker gets nothing new; on probation, one request at a time.",
    ),
    rates(
        "Canaries by end",
        "tandem_router_canaries_total",
        by="outcome",
        above_zero=True,
        note="Each new worker has one that finishes. The router's log says why one failed.",
    ),
)
_DISCOVERY = PanelRow(
    "Discovery",
    lines(
        "Workers",
        ("max by (phase) (tandem_router_discovered_workers)", "listed {{phase}}"),
        ("max by (phase) (tandem_router_served_workers)", "most of one router {{phase}}"),
        ("max by (phase) (tandem_router_routable_workers)", "routable {{phase}}"),
    ),
    lines(
        "Age of what the router knows",
        "max by (pod) (tandem_router_discovery_age_seconds)",
        unit="s",
    ),
    rates("Failed look-ups", "tandem_router_discovery_errors_total", by="reason"),
)
_RELAY = PanelRow(
    "Relay",
    lines("Payload", rate("tandem_router_relayed_bytes_total", by="pod"), unit="Bps"),
    rates("Frames of workers", "tandem_router_relayed_frames_total", by="pod"),
    lines(
        "Connections",
        (total("tandem_router_frontends", by="pod"), "frontends at {{pod}}"),
        (total("tandem_router_open_sequences", by="pod"), "open sequences at {{pod}}"),
        (total("tandem_frontend_router_streams", by="state"), "streams to routers, {{state}}"),
        (total("tandem_frontend_waiting_requests", by="missing"), "waiting, no {{missing}}"),
    ),
)
DASHBOARD = Dashboard(
    name="router",
    title="Router",
    description="Admission, pairing, discovery and relay.",
    rows=[_ADMISSION, _PAIRING, _DISCOVERY, _RELAY],
)
