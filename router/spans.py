"""The router's span of a sequence: how long it waited, which pairs ran it, how it ended."""

from __future__ import annotations

from router.core.actions import SequenceTraced
from router.core.values import Moment
from tandem.tracing.spans import Event, Span, Value

NAME = "route"


def of_sequence(traced: SequenceTraced) -> Span:
    submit, moments = traced.submit, traced.trail
    pairs = [moment for moment in moments if moment.name == "pair_chosen"]
    attributes: dict[str, Value] = {
        "gen_ai.request.model": submit.model,
        "tandem.output_index": traced.output_index,
        "tandem.outcome": traced.outcome,
        "tandem.queue.seconds": (pairs[0].at if pairs else traced.ended) - traced.arrived,
        "tandem.retries": sum(moment.name == "retry" for moment in moments),
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
        events=[Event(moment.name, moment.at, _attributes(moment)) for moment in moments],
        error=traced.error,
    )


def _attributes(moment: Moment) -> dict[str, Value]:
    if moment.name == "pair_chosen":
        return _workers(moment)
    return {"error.type": moment.code} if moment.code else {}


def _workers(moment: Moment) -> dict[str, Value]:
    return {"tandem.prefill.worker": moment.prefill, "tandem.decode.worker": moment.decode}
