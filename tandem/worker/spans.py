"""The spans of a leg: its stay in this worker and, in decode, the hand-over of its KV cache."""

from __future__ import annotations

from tandem import ids
from tandem.endings import Outcome
from tandem.engine.base import KvTransfer
from tandem.errors import TandemError
from tandem.hooks.contract import Phase
from tandem.tracing.spans import Span, SpanEvent, Tracer, Value
from tandem.v1 import worker_pb2
from tandem.worker.core.leg import Closing, Leg

KV_TRANSFER = "kv_transfer"


class LegSpans:
    """Makes spans of ended legs from their notes. All times are seconds."""

    def __init__(self, tracer: Tracer, *, phase: Phase, worker: str) -> None:
        self._tracer = tracer
        self._phase: Phase = phase
        self._worker = worker
        self._submit_seconds: dict[int, float] = {}
        """CPU seconds of the engine's input, of open legs by request_id."""

    def submitted(self, request_id: int, seconds: float) -> None:
        """The engine was given the request of a leg that is traced."""
        self._submit_seconds[request_id] = seconds

    def closed(self, leg: Leg, closing: Closing, now: float) -> None:
        """The span of a leg, named as its phase."""
        span_id = ids.new_span_id()
        first = [] if leg.first_at is None else [SpanEvent("first_token", leg.first_at)]
        self._tracer.record(
            Span(
                name=self._phase,
                trace_id=leg.trace_id,
                span_id=span_id,
                parent_id=leg.parent_span,
                began=leg.started_at,
                ended=now,
                attributes=self._attributes(leg, closing),
                events=first,
                error=closing.error,
            )
        )
        if leg.kv is not None and leg.first_at is not None and self._phase == "decode":
            self._tracer.record(_kv_transfer(leg, leg.kv, leg.first_at, span_id))

    def refused(
        self, command: worker_pb2.StartLeg, trace_id: str, error: TandemError, now: float
    ) -> None:
        self._tracer.record(
            Span(
                name=self._phase,
                trace_id=trace_id,
                span_id=ids.new_span_id(),
                parent_id=command.parent_span,
                began=now,
                ended=now,
                attributes={
                    "tandem.worker": self._worker,
                    "tandem.output_index": command.output_index,
                    "tandem.outcome": "refused",
                },
                error=error,
            )
        )

    def _attributes(self, leg: Leg, closing: Closing) -> dict[str, Value]:
        output = leg.output
        attributes: dict[str, Value] = {
            "gen_ai.usage.input_tokens": leg.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": leg.cached_tokens,
            "gen_ai.usage.output_tokens": output.completion_tokens,
            "tandem.worker": self._worker,
            "tandem.request_id": leg.request_id,
            "tandem.output_index": leg.output_index,
            "tandem.outcome": closing.outcome,
            "tandem.intake.cpu_seconds": leg.intake_seconds,
            "tandem.engine_input.cpu_seconds": self._submit_seconds.pop(leg.request_id, 0.0),
            "tandem.hook.emitted": output.emitted,
            "tandem.hook.suppressed": output.suppressed,
            "tandem.hook.terminated": output.terminated,
            "tandem.hook.seconds": output.hook_seconds,
        }
        if leg.first_at is not None:
            attributes["tandem.first_token.seconds"] = leg.first_at - leg.started_at
        if closing.outcome is Outcome.CANCELLED and closing.reason:
            attributes["tandem.cancelled.reason"] = closing.reason
        if self._phase == "decode" and output.end is not None and closing.by_itself:
            attributes["gen_ai.response.finish_reasons"] = (output.end.reason,)
            attributes["tandem.withheld"] = output.end.withheld
        if leg.kv is not None:
            attributes |= _kv_attributes(leg.kv)
        return attributes


def _kv_transfer(leg: Leg, kv: KvTransfer, arrived: float, parent: int) -> Span:
    """The hand-over's span, which ended, for all this side knows, when the first token came."""
    return Span(
        name=KV_TRANSFER,
        trace_id=leg.trace_id,
        span_id=ids.new_span_id(),
        parent_id=parent,
        began=arrived - kv.seconds,
        ended=arrived,
        attributes=_kv_attributes(kv),
        inside=True,
    )


def _kv_attributes(kv: KvTransfer) -> dict[str, Value]:
    return {
        "tandem.kv.bytes": kv.bytes,
        "tandem.kv.seconds": kv.seconds,
        "tandem.kv.transport": kv.transport,
    }
