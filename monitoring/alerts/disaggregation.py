"""Whether KV cache moves from prefill to decode, and how."""

from __future__ import annotations

from monitoring.rules import Alert, RuleGroup

MIN_KV_BYTES = 100_000
"""Each second; below it, other traffic of a pod may be more than its KV cache."""

_KV = (
    Alert(
        name="TandemNotDisaggregating",
        severity="critical",
        after="10m",
        summary="Requests flow in {place}, and no KV cache moves.",
        description="Decode workers finish {{ $value | humanize }} sequences a second without"
        " receiving a byte: decode computes the prompts itself, or does not say what it got.",
        expression="""
            sum by (namespace, job)
              (rate(tandem_worker_legs_total{phase="decode",outcome="finished"}[10m])) > 0.02
            unless on (namespace, job)
            sum by (namespace, job)
              (rate(tandem_kv_transfer_bytes_total{phase="decode"}[10m])) > 0""",
    ),
    Alert(
        name="TandemKvTransferFailures",
        after="5m",
        summary="Hand-overs of KV cache fail in {place}.",
        description="{{ $value | humanizePercentage }} of decode's sequences ended for it.",
        expression="""
            sum by (namespace, job)
              (rate(tandem_worker_failed_legs_total{phase="decode",code=~"kv_.*"}[10m]))
            / sum by (namespace, job)
              (rate(tandem_worker_legs_total{phase="decode"}[10m])) > 0.01""",
    ),
    Alert(
        name="TandemKvCorrupt",
        severity="critical",
        after="0m",
        summary="KV came damaged, or another request's, to {pod} of {place}.",
        description="{{ $value | humanize }} sequences were refused by decode's check within 15"
        " minutes. None of their output was shown.",
        expression="""
            sum by (namespace, job, pod)
              (increase(tandem_worker_failed_legs_total{code="kv_corrupt"}[15m])) > 0""",
    ),
    Alert(
        name="TandemKvTransferSlow",
        after="10m",
        summary="KV cache moves slowly over {transport} in {place}.",
        description="One hand-over in a hundred takes {{ $value | humanizeDuration }} or longer,"
        " and the first token waits for it.",
        expression="""
            histogram_quantile(0.99, sum by (namespace, job, transport, le)
              (rate(tandem_kv_transfer_seconds_bucket{phase="decode"}[10m]))) > 0.5""",
    ),
    Alert(
        name="TandemKvUsageHigh",
        after="10m",
        summary="The KV cache of {phase} worker {pod} of {place} is nearly full.",
        description="{{ $value | humanizePercentage }} of it is in use; sequences will wait for"
        " room.",
        expression="tandem_worker_kv_used_ratio > 0.9",
    ),
    Alert(
        name="TandemRetractions",
        after="10m",
        summary="Decode worker {pod} of {place} takes sequences out of its batch"
        " for want of KV cache.",
        description="{{ $value | humanize }} times a second. Their users see a pause, and part of"
        " the work is done twice.",
        expression="""
            sum by (namespace, job, pod)
              (rate(tandem_engine_retractions_total[10m])) > 0.05""",
    ),
)
_RDMA = (
    Alert(
        name="TandemKvOverTcp",
        after="10m",
        summary="KV cache leaves {pod} of {place} over TCP.",
        description="RDMA is expected, and {{ $value | humanize1024 }}B each second go over TCP, as"
        " UCX says, or, where it does not, as the pod's network interfaces carry as much.",
        expression=f"""
            sum by (namespace, job, pod) (rate(
              tandem_kv_transfer_bytes_total{{phase="prefill",transport=~".*tcp.*"}}[5m]))
            > {MIN_KV_BYTES}
            or
            sum by (namespace, job, pod) (rate(
              tandem_worker_network_bytes_total{{phase="prefill",direction="transmit"}}[5m]))
            > 0.5 * (sum by (namespace, job, pod) (rate(
              tandem_kv_transfer_bytes_total{{phase="prefill",transport=~".*unknown"}}[5m]))
            > {MIN_KV_BYTES})""",
    ),
)
GROUPS = (RuleGroup("tandem.kv.alerts", _KV), RuleGroup("tandem.rdma", _RDMA))
