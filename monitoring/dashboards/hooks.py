"""The operator's own code: output hooks, classifiers and logits processors."""

from __future__ import annotations

from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards.common import heatmap, lines, percentiles, rates, shares, table
from monitoring.queries import quantile, rate, ratio, total

_HOOK, _CLASSIFIER = "phase, hook", "phase, classifier"
_HOOK_VERDICTS, _CLASSIFIER_VERDICTS = (
    "tandem_hook_verdicts_total",
    "tandem_classifier_verdicts_total",
)
_FAILED = '{verdict=~"error|timeout"}'

_HOOKS = PanelRow(
    "Output hooks",
    rates("Verdicts", _HOOK_VERDICTS, by=f"{_HOOK}, verdict", above_zero=True),
    rates("Errors and timeouts", _HOOK_VERDICTS + _FAILED, by=f"{_HOOK}, verdict"),
    shares(
        "Share of chunks that hooks changed or withheld",
        ratio(
            rate(f'{_HOOK_VERDICTS}{{verdict!="emit"}}', by=_HOOK),
            rate(_HOOK_VERDICTS, by=_HOOK),
        ),
    ),
    lines(
        "Time of a call",
        (quantile(0.5, "tandem_hook_seconds", by=_HOOK), "p50 {{phase}} {{hook}}"),
        (quantile(0.99, "tandem_hook_seconds", by=_HOOK), "p99 {{phase}} {{hook}}"),
        unit="s",
    ),
    heatmap("Time of a call, distribution", "tandem_hook_seconds"),
    lines("Held tokens", total("tandem_hook_held_tokens", by=_HOOK)),
    lines(
        "State: open sequences",
        total("tandem_hook_open_sequences", by=_HOOK),
        (total("tandem_worker_open_legs", by="phase"), "open in the worker, {{phase}}"),
        note="A hook keeps state for each open sequence. It must not grow beyond the worker's.",
    ),
    table("Hooks", "count by (phase, hook, on_error, shadow) (tandem_hook_info)"),
    lines(
        "Audit log",
        rate("tandem_audit_records_total", by="outcome"),
        (rate("tandem_audit_errors_total"), "refused by the disk, tried again"),
        unit="cps",
    ),
)
_POOL = PanelRow(
    "Hook pool",
    lines("Processes that can judge", total("tandem_hook_pool_processes", by="phase, pod")),
    lines("Chunks that wait for a verdict", total("tandem_hook_pool_outstanding", by="phase, pod")),
    rates("Processes replaced", "tandem_hook_pool_restarts_total", by="phase, pod"),
)
_CLASSIFIERS = PanelRow(
    "Classifiers",
    lines(
        "Verdicts",
        (
            rate(_CLASSIFIER_VERDICTS, by=f"{_CLASSIFIER}, verdict") + " > 0",
            "{{classifier}} {{verdict}}",
        ),
        unit="cps",
        width=6,
    ),
    percentiles(
        "Time of a call",
        "tandem_classifier_seconds",
        by="classifier",
        shares=(0.5, 0.99),
        width=6,
    ),
    lines(
        "Errors and timeouts",
        (
            rate(_CLASSIFIER_VERDICTS + _FAILED, by=f"{_CLASSIFIER}, verdict"),
            "{{classifier}} {{verdict}}",
        ),
        unit="cps",
        width=6,
    ),
    lines(
        "Calls that have not returned",
        (total("tandem_classifier_running", by=_CLASSIFIER), "{{classifier}}"),
        width=6,
    ),
)
_LOGITS = PanelRow(
    "Logits processors",
    lines("Sequences that hold state", total("tandem_logits_states", by="phase, pod"), width=12),
    rates(
        "Requests that a processor failed",
        'tandem_worker_failed_legs_total{code="logits_processor_failed"}',
        by="phase",
        width=12,
    ),
)
_FORMS = PanelRow(
    "Forms of answers",
    rates("Compilations", "tandem_form_compilations_total", by="phase, outcome", width=6),
    lines(
        "Time of a compilation",
        (quantile(0.5, "tandem_form_compile_seconds", by="phase"), "p50 {{phase}}"),
        (quantile(0.99, "tandem_form_compile_seconds", by="phase"), "p99 {{phase}}"),
        unit="s",
        width=6,
    ),
    lines("Forms that wait", total("tandem_form_waiting", by="phase, pod"), width=4),
    lines(
        "Memory of compiled forms",
        total("tandem_form_cache_bytes", by="phase, pod"),
        unit="bytes",
        width=4,
    ),
    lines(
        "Sequences by whether their form was there",
        (rate("tandem_form_cache_hits_total", by="phase"), "{{phase}} hit"),
        (rate("tandem_form_cache_misses_total", by="phase"), "{{phase}} miss"),
        unit="cps",
        width=4,
    ),
)
DASHBOARD = Dashboard(
    name="hooks",
    title="Hooks and processors",
    description="Output hooks, their pool, classifiers and logits processors.",
    rows=[_HOOKS, _POOL, _CLASSIFIERS, _LOGITS, _FORMS],
)
