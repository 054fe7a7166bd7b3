"""The operator's own code: hooks, classifiers, logits processors, and the audit log."""

from __future__ import annotations

from monitoring.rules import Alert, RuleGroup

FELT_SECONDS = 0.05
"""What a user feels between two tokens."""
SPARE_STATES = 16
"""Sequences that may end while a scrape is answered."""

_HOOKS = (
    Alert(
        name="TandemHookErrors",
        after="5m",
        summary="Hook {hook} of {place} fails in {phase}.",
        description="{{ $value | humanizePercentage }} of the hook's calls raised or took too long."
        " With on_error: closed each such call ends a request with hook_failed.",
        expression="""
            sum by (namespace, job, phase, hook)
              (rate(tandem_hook_verdicts_total{verdict=~"error|timeout"}[5m]))
            / sum by (namespace, job, phase, hook) (rate(tandem_hook_verdicts_total[5m])) > 0.01""",
    ),
    Alert(
        name="TandemHookSlow",
        after="10m",
        summary="Hook {hook} of {place} slows {phase} down.",
        description="One call of the hook in a hundred takes {{ $value | humanizeDuration }} or"
        " longer.",
        expression=f"""
            histogram_quantile(0.99, sum by (namespace, job, phase, hook, le)
              (rate(tandem_hook_seconds_bucket[10m]))) > {FELT_SECONDS}""",
    ),
    Alert(
        name="TandemHookStateGrowing",
        after="15m",
        summary="Hook {hook} at {pod} of {place} keeps sequences that are over.",
        description="The hook was not told the end of {{ $value }} sequences more than its worker"
        " has open: the state that the hook keeps for them grows.",
        expression=f"""
            sum by (namespace, job, pod, instance, phase, hook) (tandem_hook_open_sequences)
            - on (namespace, job, pod, instance, phase) group_left
            sum by (namespace, job, pod, instance, phase) (tandem_worker_open_legs)
            > {SPARE_STATES}""",
    ),
    Alert(
        name="TandemHookPoolRestarting",
        after="0m",
        summary="Processes of the hook pool at {pod} of {place} die.",
        description="{{ $value | humanize }} processes were replaced within 15 minutes; requests"
        " that these processes judged failed.",
        expression="""
            sum by (namespace, job, phase, pod)
              (increase(tandem_hook_pool_restarts_total[15m])) > 2""",
    ),
)
_OTHERS = (
    Alert(
        name="TandemClassifierErrors",
        after="5m",
        summary="Classifier {classifier} of {place} fails.",
        description="{{ $value | humanizePercentage }} of the classifier's calls raised or took too"
        " long.",
        expression="""
            sum by (namespace, job, classifier)
              (rate(tandem_classifier_verdicts_total{verdict=~"error|timeout"}[5m]))
            / sum by (namespace, job, classifier)
              (rate(tandem_classifier_verdicts_total[5m])) > 0.01""",
    ),
    Alert(
        name="TandemLogitsStateGrowing",
        after="15m",
        summary="Logits processors at {pod} of {place} keep sequences that are over.",
        description="{{ $value }} sequences more than the worker has open hold state.",
        expression=f"""
            sum by (namespace, job, pod, instance, phase) (tandem_logits_states)
            - sum by (namespace, job, pod, instance, phase) (tandem_worker_open_legs)
            > {SPARE_STATES}""",
    ),
    Alert(
        name="TandemAuditDropped",
        severity="critical",
        after="0m",
        summary="{pod} of {place} lost records of its audit log.",
        description="{{ $value | humanize }} decisions were not written within 15 minutes: the"
        " disk is full, or slower than they come.",
        expression="""
            sum by (namespace, job, pod)
              (increase(tandem_audit_records_total{outcome="dropped"}[15m])) > 0""",
    ),
)
GROUPS = (RuleGroup("tandem.hooks.alerts", _HOOKS), RuleGroup("tandem.judges.alerts", _OTHERS))
