"""The frontend's spans: one for each HTTP request that is sampled, the first of its trace here, and
below it what of the request has a span of its own.

Attributes are named as OpenTelemetry's conventions for HTTP servers name them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tandem import ids
from tandem.errors import CancelledError, SlowClientError, TandemError
from tandem.ids import Traceparent
from tandem.tracing.spans import Attributes, Sampler, Span, SpanEvent, Tracer, Value


class CallSpans:
    """Decides which requests are traced, and begins their spans."""

    def __init__(self, tracer: Tracer, *, sample_ratio: float) -> None:
        self._tracer = tracer
        self._sampler = Sampler(sample_ratio)

    def begin(
        self,
        trace_id: str,
        parent: Traceparent | None,
        *,
        link: Traceparent | None,
        method: str,
        route: str,
    ) -> CallSpan | None:
        """None where the request is not traced. `parent`: the client's own span, where its trace
        goes on here; `link`: the same, where it does not.
        """
        if not self._sampler.samples(trace_id, parent):
            return None
        parent_id = 0 if parent is None else parent.span_id
        return CallSpan(self._tracer, trace_id, parent_id, link=link, method=method, route=route)


class CallSpan:
    """The span of one request; filled while it is served."""

    def __init__(
        self,
        tracer: Tracer,
        trace_id: str,
        parent_id: int,
        *,
        link: Traceparent | None,
        method: str,
        route: str,
    ) -> None:
        self.span_id = ids.new_span_id()
        self._tracer = tracer
        self._trace_id = trace_id
        self._parent_id = parent_id
        self._link = link
        self._began = time.monotonic()
        self._events: list[SpanEvent] = []
        self._attributes: dict[str, Value] = {"http.request.method": method, "http.route": route}

    def add(self, attributes: Mapping[str, Value], *events: SpanEvent) -> None:
        self._attributes |= attributes
        self._events += events

    def child(
        self, name: str, began: float, ended: float, *, attributes: Attributes, parent: int = 0
    ) -> int:
        """Record a part of the request that is over, below `parent`. Returns the part's span."""
        span_id = ids.new_span_id()
        self._tracer.record(
            Span(
                name=name,
                trace_id=self._trace_id,
                span_id=span_id,
                parent_id=parent or self.span_id,
                began=began,
                ended=ended,
                attributes=attributes,
                inside=True,
            )
        )
        return span_id

    def end(self, error: TandemError | None, *, streamed: bool) -> None:
        """`streamed`: the status line had been sent before the error came."""
        attributes = self._attributes
        if error is None or streamed:
            attributes["http.response.status_code"] = 200
        elif not isinstance(error, CancelledError | SlowClientError):  # they are sent nothing
            attributes["http.response.status_code"] = error.http_status
        self._tracer.record(
            Span(
                name=f"{attributes['http.request.method']} {attributes['http.route']}",
                trace_id=self._trace_id,
                span_id=self.span_id,
                parent_id=self._parent_id,
                began=self._began,
                ended=time.monotonic(),
                attributes=attributes,
                events=self._events,
                error=error,
                link=self._link,
            )
        )
