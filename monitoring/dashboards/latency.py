"""The dashboard of what users wait for: first tokens, and the time between tokens."""

from __future__ import annotations

from dataclasses import replace

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import (
    E2E,
    GOODPUT,
    GOODPUT_NOW,
    ITL,
    TTFT,
    heatmap,
    lines,
    percentiles,
    shares,
)
from monitoring.queries import EVERY_REQUEST, rate, ratio
from monitoring.recording import WINDOWS, burn

_MET = "tandem_frontend_slo_requests_total"


def _objective(name: str) -> tuple[str, str]:
    return f'max(tandem_frontend_slo_seconds{{objective="{name}"}})', "objective"


def _burns(what: str) -> list[tuple[str, str]]:
    return [(f"max({burn(what, window)})", window) for window in WINDOWS]


_GOODPUT = PanelRow(
    "Goodput",
    replace(GOODPUT_NOW, height=8),
    shares(
        "Requests that met their objectives",
        (GOODPUT, "both"),
        (ratio(rate(f'{_MET}{{ttft="met"}}'), rate(EVERY_REQUEST)), "time to first token"),
        (ratio(rate(f'{_MET}{{itl="met"}}'), rate(EVERY_REQUEST)), "time between tokens"),
        width=10,
        note="Share of all requests but those that failed by their client's doing; a failed"
        " request met nothing.",
    ),
    lines(
        "Requests by the objectives that they met",
        (rate(_MET, by="ttft, itl"), "TTFT {{ttft}}, ITL {{itl}}"),
        unit="reqps",
        stacked=True,
        width=10,
    ),
)
_PERCENTILES = PanelRow(
    "Latency",
    percentiles("Time to first token", TTFT, more=[_objective("ttft")]),
    percentiles(
        "Time between tokens",
        ITL,
        more=[_objective("itl")],
        note="The objective is for a request's mean; this is of single tokens.",
    ),
    percentiles("Whole request", E2E),
    heatmap("Time to first token, distribution", TTFT, height=9),
    heatmap("Time between tokens, distribution", ITL, height=9),
    heatmap("Whole request, distribution", E2E, height=9),
)
_RECORDED = "as recorded for the alerts"
_BUDGET = PanelRow(
    "Error budget",
    *(
        lines(
            f"{what.upper()} objective missed",
            *_burns(f"{what}_misses"),
            unit="percentunit",
            note=f"Share of successful requests, {_RECORDED}, over each window.",
        )
        for what in ("ttft", "itl")
    ),
    lines(
        "Requests that failed",
        *_burns("errors"),
        unit="percentunit",
        note=f"Share of requests with status 5xx or queue_full, {_RECORDED}.",
    ),
)
_CLIENTS = PanelRow(
    "Clients",
    lines(
        "Requests that their client ended",
        (rate("tandem_frontend_disconnects_total"), "went away"),
        (rate("tandem_frontend_slow_clients_total"), "read too slowly"),
        unit="reqps",
        width=12,
    ),
    lines(
        "Output that waits for clients",
        "sum by (pod) (tandem_frontend_backlog_bytes)",
        unit="bytes",
        width=12,
    ),
)
_READING = PanelRow(
    "Reading prompts",
    lines(
        "Prompt tokens",
        (rate("tandem_frontend_prompt_tokens_total"), "submitted"),
        (rate("tandem_frontend_known_prompt_tokens_total"), "known from an earlier prompt"),
        width=8,
        note="Tokens a second; what is known is not tokenised again.",
    ),
    lines(
        "Bodies that wait for a process",
        "sum by (size) (tandem_frontend_waiting_bodies)",
        width=8,
    ),
    lines(
        "Store of earlier prompts",
        "sum by (pod) (tandem_frontend_prefix_store_bytes)",
        unit="bytes",
        width=8,
    ),
    lines(
        "Prompt tokens that did not travel",
        (rate("tandem_router_known_prompt_tokens_total"), "to routers"),
        (rate("tandem_worker_known_prompt_tokens_total"), "to workers"),
        width=12,
        note="Tokens a second; a router or worker knows them from an earlier prompt.",
    ),
    lines(
        "Beginnings of prompts that are kept",
        ("sum by (pod) (tandem_router_prompt_chunk_bytes)", "{{pod}}"),
        ("sum by (pod) (tandem_worker_prompt_chunk_bytes)", "{{pod}}"),
        unit="bytes",
        width=12,
    ),
    lines(
        "CPU of reading, by step",
        rate("tandem_frontend_reading_cpu_seconds_total", by="step"),
        width=12,
        note="Cores that read prompts, in frontends and the processes beside them.",
    ),
    lines(
        "CPU of beginning legs, by step",
        rate("tandem_worker_input_cpu_seconds_total", by="phase, step"),
        width=12,
        note="Cores that workers read tasks with, and give engines their requests.",
    ),
)
DASHBOARD = Dashboard(
    name="latency",
    title="User latency",
    description="Time to first token, time between tokens, whole requests, and goodput.",
    rows=[_GOODPUT, _PERCENTILES, _BUDGET, _CLIENTS, _READING],
)
