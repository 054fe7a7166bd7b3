"""What an executor of a router can say of a request's times: by its own clock, and by what the
workers measured. Clocks of two machines are never compared.
"""

from __future__ import annotations

import time
from datetime import timedelta

from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2
from tandem_executor.statistics import HookMetrics, KvCacheMetrics, RequestPerfMetrics

_PHASES = {common_pb2.PHASE_PREFILL: "prefill", common_pb2.PHASE_DECODE: "decode"}


def measure(state: RequestState, sequence: int, metrics: RequestPerfMetrics) -> None:
    """Write down what is known of one sequence of a request, at the moment at which it has ended.

    A worker says how long its phase took, so the phase began so long before now; what the report
    needed to come here is counted in. Phases of both workers begin together.
    """
    timing = metrics.timing_metrics
    arrived, first = timing.arrival_time.total_seconds(), state.first_at
    reports = {
        report.phase: report for report in state.reports if report.sequence == state.base + sequence
    }
    metrics.hook_metrics = [
        HookMetrics(
            phase=_PHASES[phase],
            worker=report.worker,
            emitted=report.emitted,
            suppressed=report.suppressed,
            terminated=report.terminated,
            seconds=report.hook_seconds,
        )
        for phase, report in sorted(reports.items())
        if phase in _PHASES
    ]
    if first:
        timing.first_token_time = timedelta(seconds=first)
    if last := state.last_at(sequence):
        timing.last_token_time = timedelta(seconds=last)
    prefill = reports.get(common_pb2.PHASE_PREFILL)
    decode = reports.get(common_pb2.PHASE_DECODE)
    if decode is not None:
        now = time.monotonic()
        began = min(now - decode.phase_seconds, first or now)
        timing.first_scheduled_time = timedelta(seconds=max(arrived, began))
        cached, prompt = state.cached_tokens[0], state.submission.prompt_tokens
        metrics.kv_cache_metrics = KvCacheMetrics(kv_cache_hit_rate=cached / prompt)
    # Decode's figure is the second choice: SGLang's holds what it waited for prefill.
    moved = next((each for each in (prefill, decode) if each is not None and each.kv_bytes), None)
    if moved is not None and first:
        timing.kv_cache_transfer_start = timedelta(seconds=max(arrived, first - moved.kv_seconds))
        timing.kv_cache_transfer_end = timing.first_token_time
        timing.kv_cache_size = moved.kv_bytes
