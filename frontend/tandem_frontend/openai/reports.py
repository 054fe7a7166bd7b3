"""What was done for a request, and where its time went, as workers and the router measured it."""

from __future__ import annotations

import time

from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2
from tandem_frontend.openai.answers import PhaseReport, Report, Timeline


def report(state: RequestState, arrived: float) -> Report | None:
    """The report of a request that has ended; None: it was not asked for."""
    if not state.submission.task.want_report:
        return None
    phases = [_phase(each, state.base) for each in state.reports]
    return Report(
        trace_id=state.submission.task.trace_id,
        ttft_seconds=state.first_at - arrived if state.first_at else None,
        request_seconds=time.monotonic() - arrived,
        timeline=[_timeline(state, choice, phases) for choice in range(len(state.sequences))],
        phases=phases,
    )


def _timeline(state: RequestState, choice: int, phases: list[PhaseReport]) -> Timeline:
    """Where a choice's time went. Both legs are started together: a prefill leg ends with the
    hand-over of its KV, and a decode leg's time holds that of its prefill leg.
    """
    waits = [each for each in state.queue_waits if each.sequence - state.base == choice]
    prefill = [each for each in phases if each.choice == choice and each.phase == "prefill"]
    decode = [each for each in phases if each.choice == choice and each.phase == "decode"]
    # Decode's figure is the second choice: SGLang's holds what it waited for prefill.
    kv = _sum("kv_seconds", prefill if any(each.kv_bytes for each in prefill) else decode)
    whole = _sum("phase_seconds", decode)
    before_decode = _sum("phase_seconds", prefill) if prefill else min(kv, whole)
    kv = min(kv, before_decode)
    return Timeline(
        choice=choice,
        queue_seconds=sum(each.seconds for each in waits),
        queue_cause="; ".join(dict.fromkeys(each.cause for each in waits if each.cause)),
        prefill_seconds=before_decode - kv,
        kv_seconds=kv,
        decode_seconds=max(0.0, whole - before_decode),
    )


def _sum(field: str, phases: list[PhaseReport]) -> float:
    total: float = sum(getattr(each, field) for each in phases)
    return total


def _phase(report: common_pb2.PhaseReport, base: int) -> PhaseReport:
    return PhaseReport(
        choice=report.sequence - base,
        phase="prefill" if report.phase == common_pb2.PHASE_PREFILL else "decode",
        worker=report.worker,
        request_id=report.request_id,
        emitted=report.emitted,
        suppressed=report.suppressed,
        terminated=report.terminated,
        hook_seconds=report.hook_seconds,
        phase_seconds=report.phase_seconds,
        kv_bytes=report.kv_bytes,
        kv_seconds=report.kv_seconds,
        kv_transport=report.kv_transport,
    )
