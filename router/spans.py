"""The router's span of a sequence: how long it waited, which pairs ran it, how it ended."""

from __future__ import annotations

from router.core.actions import SequenceTraced
from router.core.values import SpanEvent
from tandem.tracing.spans import Event, Span, Value

NAME = "route"


def of_sequence(traced: SequenceTraced) -> Span:
    submit, happened = traced.submit, traced.span_events
    pairs = [each for each in happened if each.name == "pair_chosen"]
    attributes: dict[str, Value] = {
        "gen_ai.request.model": submit.model,
        "tandem.output_index": traced.output_index,
        "tandem.outcome": traced.outcome,
        "tandem.queue.seconds": (pairs[0].at if pairs else traced.ended) - traced.arrived,
        "tandem.retries": sum(each.name == "retry" for each in happened),
    }
    if pairs:
        attributes |= _workers(pairs[-1])
    return Span(
        name=NAME,
        trace_id=submit.trace_id,
        span_id=submit.first_span + traced.output_index,
        parent_id=submit.parent_span,
        began=traced.arrived,
        ended=traced.ended,
        attributes=attributes,
        events=[Event(each.name, each.at, _attributes(each)) for each in happened],
        error=traced.error,
    )


def _attributes(event: SpanEvent) -> dict[str, Value]:
    if event.name == "pair_chosen":
        return _workers(event)
    return {"error.type": event.code} if event.code else {}


def _workers(event: SpanEvent) -> dict[str, Value]:
    names = {"tandem.prefill.worker": event.prefill, "tandem.decode.worker": event.decode}
    return {name: worker for name, worker in names.items() if worker}
