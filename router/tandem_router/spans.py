"""The router's spans of a sequence: how long it waited, which pairs ran it, how it ended."""

from __future__ import annotations

from tandem import ids
from tandem.tracing.spans import Span, SpanEvent, Value
from tandem_router.core.actions import SequenceTraced
from tandem_router.core.story import Moment

NAME = "route"
ADMISSION = "admission"
_TOLD = ("pair_chosen", "retry", "regenerate", "resume")


def of_sequence(traced: SequenceTraced) -> Span:
    submit, began = traced.submit, traced.arrived
    happened = [each for each in traced.moments if each.name in _TOLD]
    pairs = [each for each in happened if each.name == "pair_chosen"]
    attributes: dict[str, Value] = {
        "gen_ai.request.model": submit.model,
        "tandem.output_index": traced.output_index,
        "tandem.outcome": traced.outcome,
        "tandem.queue.seconds": pairs[0].at if pairs else traced.ended - began,
        "tandem.retries": sum(each.name == "retry" for each in happened),
    }
    if pairs:
        attributes |= _workers(pairs[-1])
    return Span(
        name=NAME,
        trace_id=submit.trace_id,
        span_id=traced.span,
        parent_id=submit.parent_span,
        began=began,
        ended=traced.ended,
        attributes=attributes,
        events=[SpanEvent(each.name, began + each.at, _attributes(each)) for each in happened],
        error=traced.error,
    )


def of_admission(traced: SequenceTraced) -> Span:
    """The sequence's wait for its first pair; for all its time, where it had none."""
    began = traced.arrived
    pair = next((each for each in traced.moments if each.name == "pair_chosen"), None)
    return Span(
        name=ADMISSION,
        trace_id=traced.submit.trace_id,
        span_id=ids.new_span_id(),
        parent_id=traced.span,
        began=began,
        ended=traced.ended if pair is None else began + pair.at,
        attributes={"tandem.output_index": traced.output_index},
        inside=True,
    )


def _attributes(event: Moment) -> dict[str, Value]:
    if event.name == "pair_chosen":
        return _workers(event)
    return {"error.type": event.code} if event.code else {}


def _workers(event: Moment) -> dict[str, Value]:
    choices = {"tandem.prefill.worker": event.prefill, "tandem.decode.worker": event.decode}
    told: dict[str, Value] = {name: choice.name for name, choice in choices.items() if choice}
    if event.way is not None:
        told |= {"tandem.way": event.way.name, "tandem.way.reason": event.way.reason}
    return told
