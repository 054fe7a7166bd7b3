"""What was done for a request, and where its time went, as workers and the router measured it."""

from __future__ import annotations

import time

from tandem.timeline import divide, leg_times
from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2
from tandem_frontend.http.call_story import CallTimes
from tandem_frontend.openai.answers import PhaseReport, Report, Timeline


def report(state: RequestState, times: CallTimes) -> Report | None:
    """The report of a request that has ended; None: it was not asked for."""
    if not state.submission.task.want_report:
        return None
    whole = time.monotonic() - times.arrived
    return Report(
        trace_id=state.submission.task.trace_id,
        ttft_seconds=state.first_at - times.arrived if state.first_at else None,
        request_seconds=whole,
        timeline=[_timeline(state, times, whole, each) for each in state.sequences],
        phases=[_phase(each, state.base) for each in state.reports],
    )


def _timeline(state: RequestState, times: CallTimes, whole: float, sequence: int) -> Timeline:
    waits = [each for each in state.queue_waits if each.sequence == sequence]
    mine = (leg_times(each) for each in state.reports if each.sequence == sequence)
    parts = divide(
        whole,
        read=times.reading,
        queue=times.queue + sum(each.seconds for each in waits),
        legs=[each for each in mine if each is not None],
        client=time.monotonic() - times.over if times.over else 0.0,
    )
    return Timeline(
        choice=sequence - state.base,
        queue_cause="; ".join(dict.fromkeys(each.cause for each in waits if each.cause)),
        **{f"{part}_seconds": seconds for part, seconds in parts.items()},
    )


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
        first_seconds=report.first_seconds,
        engine_queue_seconds=report.engine.queue,
        classifier_seconds=report.classifier_seconds,
    )
