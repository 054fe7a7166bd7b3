"""Is it well, and how much does it do?"""

from __future__ import annotations

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import (
    ERROR_RATIO,
    GOODPUT_NOW,
    ITL,
    KV_BYTES,
    TTFT,
    lines,
    percentiles,
    rates,
    shares,
    stat,
    table,
)
from monitoring.queries import quantile, rate, ratio, total

_RED_WHEN_NONE = ((0, "red"), (1, "green"))
_HEALTH = PanelRow(
    "Health",
    stat(
        "Firing alerts",
        'count(ALERTS{alertname=~"Tandem.*",alertstate="firing"}) or vector(0)',
        thresholds=[(1, "red")],
        note="Tandem's own alerts of this release.",
    ),
    stat("Pairs that take work", "max(tandem_router_ready_pairs)", thresholds=_RED_WHEN_NONE),
    GOODPUT_NOW,
    stat(
        "Errors",
        ERROR_RATIO,
        unit="percentunit",
        thresholds=[(0.01, "orange"), (0.05, "red")],
        note="Share of requests that failed with status 5xx or queue_full.",
    ),
    stat("TTFT p99", quantile(0.99, TTFT), unit="s"),
    stat("ITL p99", quantile(0.99, ITL), unit="s"),
)
_TRAFFIC = PanelRow(
    "Traffic",
    rates(
        "Requests by outcome",
        "tandem_frontend_requests_total",
        by="outcome",
        above_zero=True,
        unit="reqps",
        stacked=True,
    ),
    lines(
        "Tokens",
        (rate("tandem_frontend_prompt_tokens_total"), "prompt"),
        (rate("tandem_frontend_completion_tokens_total"), "completion"),
        unit="cps",
        note="Tokens each second, in and out.",
    ),
    lines(
        "Requests in flight",
        (total("tandem_frontend_open_requests"), "open"),
        (total("tandem_router_queue_length"), "waiting for a pair"),
    ),
    percentiles("Time to first token", TTFT),
    percentiles("Time between tokens", ITL),
    lines("KV cache handed over", (KV_BYTES, "received by decode"), unit="Bps"),
)
_WORKERS = PanelRow(
    "Workers",
    lines("Ready workers", "sum by (phase) (tandem_worker_ready)"),
    lines(
        "Sequences",
        (total("tandem_worker_open_legs", by="phase"), "open, {{phase}}"),
        (total("tandem_worker_waiting_legs", by="phase"), "waiting, {{phase}}"),
    ),
    shares(
        "KV cache in use",
        ratio(
            total("tandem_worker_kv_tokens_used", by="phase"),
            total("tandem_worker_kv_tokens_total", by="phase"),
        ),
    ),
)
_KEYS = PanelRow(
    "Keys",
    lines(
        "Computing by key",
        (rate("tandem_worker_key_seconds_total", by="phase, key"), "{{phase}}, {{key}}"),
        (rate("tandem_worker_idle_seconds_total", by="phase"), "{{phase}}, idle"),
        note="Seconds of workers each second; all of them together are the workers that serve.",
    ),
    lines(
        "Slots by key",
        (rate("tandem_worker_key_slot_seconds_total", by="phase, key"), "{{phase}}, {{key}}"),
    ),
    lines(
        "KV cache by key",
        (rate("tandem_worker_key_kv_token_seconds_total", by="phase, key"), "{{phase}}, {{key}}"),
        note="Tokens that sequences held.",
    ),
)
_PROCESSES = PanelRow(
    "Processes",
    lines("CPU", rate("process_cpu_seconds_total", by="pod"), width=6),
    lines("Memory", total("process_resident_memory_bytes", by="pod"), unit="bytes", width=6),
    lines(
        "Of it held for clients and peers",
        total("tandem_frontend_held_bytes", by="pod"),
        total("tandem_router_held_bytes", by="pod"),
        total("tandem_worker_held_bytes", by="pod"),
        unit="bytes",
        width=6,
        note="Bodies, prompts, collected answers and backlogs, which max_held_bytes bounds.",
    ),
    rates("Trace spans", "tandem_trace_spans_total", by="outcome", width=6),
    table("Versions", "count by (component, version) (tandem_build_info)"),
)
DASHBOARD = Dashboard(
    name="overview",
    title="Overview",
    description="Health, traffic and workers of a release.",
    rows=[_HEALTH, _TRAFFIC, _WORKERS, _KEYS, _PROCESSES],
)
