"""What passes between prefill and decode, and how the two are balanced."""

from __future__ import annotations

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import KV_BYTES, heatmap, lines, percentiles, rates, shares, stat
from monitoring.queries import quantile, rate, ratio, total

_KV = 'tandem_kv_transfer_seconds{phase="decode"}'
_KV_SUM = rate('tandem_kv_transfer_seconds_sum{phase="prefill"}', by="transport")
_KV_BYTES = rate('tandem_kv_transfer_bytes_total{phase="prefill"}', by="transport")
_READY = "sum(tandem_worker_ready{{phase={phase}}})"

_TRANSFER = PanelRow(
    "KV transfer",
    stat("KV received", KV_BYTES, unit="Bps"),
    stat("Transfer p50", quantile(0.5, _KV), unit="s"),
    stat("Transfer p99", quantile(0.99, _KV), unit="s"),
    stat(
        "Speed of a transfer",
        ratio(KV_BYTES, rate('tandem_kv_transfer_seconds_sum{phase="decode"}')),
        unit="Bps",
        note="Bytes by the time of their transfers: of one transfer in the mean.",
    ),
    stat(
        "Failed transfers",
        rate('tandem_worker_failed_legs_total{code=~"kv_.*",phase="decode"}'),
        unit="cps",
        thresholds=[(1e-9, "red")],
    ),
    stat(
        "Prefill to decode",
        ratio(_READY.format(phase='"prefill"'), _READY.format(phase='"decode"')),
        unit="short",
        note="Ready prefill workers for each ready decode worker.",
    ),
    lines(
        "Bytes by transport",
        _KV_BYTES,
        unit="Bps",
        note="As reported by prefill, which writes the pages.",
    ),
    percentiles("Transfer time", _KV, by="transport"),
    heatmap("Transfer time, distribution", _KV),
    lines("Speed of a transfer", ratio(_KV_BYTES, _KV_SUM), unit="Bps"),
    rates("Failures by reason", 'tandem_worker_failed_legs_total{code=~"kv_.*"}', by="phase, code"),
    lines(
        "Open hand-overs",
        total("tandem_kv_open_handovers", by="phase"),
        note="Engines that cannot say have no series here.",
    ),
    lines(
        "KV cache against network",
        (KV_BYTES, "KV cache"),
        (
            rate('tandem_worker_network_bytes_total{phase="decode",direction="receive"}'),
            "network interfaces of decode",
        ),
        unit="Bps",
        width=24,
        height=7,
        note="Over RDMA the lower curve stays near 0 while KV moves. Where it follows the KV"
        " curve, KV goes over TCP. With hostNetwork it shows the whole node's traffic.",
    ),
)
_PHASES = PanelRow(
    "Phases",
    percentiles("Time of a sequence", "tandem_worker_leg_seconds", by="phase", shares=(0.5, 0.99)),
    percentiles("Wait for a pair", "tandem_router_queue_seconds"),
    lines(
        "Queue in each phase",
        total("tandem_worker_waiting_legs", by="phase"),
        (total("tandem_router_queue_length"), "router"),
        note="As engines say: in prefill those that are queued, in decode also those that wait for"
        " pages or were retracted. Forms that are compiled for count too.",
    ),
    shares(
        "Slots in use",
        ratio(
            total("tandem_router_worker_open_legs", by="phase"),
            total("tandem_router_worker_slots", by="phase"),
        ),
        note="The phase that is full limits the release: give it workers.",
    ),
    lines("Ready workers", "sum by (phase) (tandem_worker_ready)"),
    rates("How sequences ended", "tandem_worker_legs_total", by="phase, outcome", above_zero=True),
)
_STATES = PanelRow(
    "Requests in engines",
    lines(
        "Prefill",
        total('tandem_engine_requests{phase="prefill"}', by="state"),
        width=6,
        note="Preallocating is high while decode has no pages to offer: decode is short.",
    ),
    lines(
        "Decode",
        total('tandem_engine_requests{phase="decode"}', by="state"),
        width=6,
        note="Preallocating is high while the KV cache is full; transferring, while prefill is slow"
        " or the network is.",
    ),
    rates("Retractions", "tandem_engine_retractions_total", by="phase, pod", width=6),
    lines(
        "Tokens a step by speculative decoding",
        "avg by (phase, rank) (tandem_engine_accept_length)",
        width=6,
    ),
    lines(
        "Units that an engine's release lacks",
        'count by (phase, unit) (tandem_engine_unit{state="lacking"})',
        width=6,
        note="Workers do without them: docs/engines/sglang.md says what that means.",
    ),
)
_ENGINE = PanelRow(
    "Engine",
    lines(
        "Tokens by phase",
        (rate("tandem_worker_prompt_tokens_total", by="phase"), "prompt, {{phase}}"),
        (rate("tandem_worker_tokens_total", by="phase"), "made, {{phase}}"),
        unit="cps",
        width=6,
    ),
    shares(
        "KV cache in use",
        "max by (phase, pod, rank) (tandem_engine_kv_used_ratio)",
        width=6,
    ),
    shares(
        "Prefix cache hits",
        (
            ratio(
                rate("tandem_worker_cached_tokens_total", by="phase"),
                rate("tandem_worker_prompt_tokens_total", by="phase"),
            ),
            "{{phase}}",
        ),
        (
            ratio(
                rate("tandem_router_expected_cached_tokens_total"),
                rate("tandem_router_prompt_tokens_total"),
            ),
            "expected by routers",
        ),
        (
            ratio(
                rate("tandem_router_lost_hit_tokens_total"),
                rate("tandem_router_prompt_tokens_total"),
            ),
            "lost where sessions' prompts differ early",
        ),
        width=6,
    ),
    percentiles(
        "Worker's time for an engine step",
        "tandem_worker_step_seconds",
        by="phase",
        shares=(0.5, 0.99),
        width=6,
    ),
)
DASHBOARD = Dashboard(
    name="disaggregation",
    title="Disaggregation",
    description="KV transfer, the two phases side by side, and their engines.",
    rows=[_TRANSFER, _PHASES, _STATES, _ENGINE],
)
