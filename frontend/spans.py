"""The frontend's spans: one for each HTTP request that is sampled, the first of its trace here.

Attributes are named as OpenTelemetry's conventions for HTTP servers and for generative AI name
them; what they have no name for begins with `tandem.`.
"""

from __future__ import annotations

import time

from frontend.upstream.request_state import RequestState
from frontend.upstream.submission import Submission
from tandem import ids
from tandem.errors import CancelledError, SlowClientError, TandemError
from tandem.ids import Traceparent
from tandem.tracing.spans import Event, Sampler, Span, Tracer, Value

PROVIDER = "tandem"
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


class CallSpans:
    """Decides which requests are traced, and begins their spans."""

    def __init__(self, tracer: Tracer, *, sample_ratio: float) -> None:
        self._tracer = tracer
        self._sampler = Sampler(sample_ratio)

    def begin(
        self, trace_id: str, parent: Traceparent | None, *, method: str, route: str
    ) -> CallSpan | None:
        """None where the request is not traced. `parent`: the client's own span."""
        if not self._sampler.samples(trace_id, parent):
            return None
        parent_id = 0 if parent is None else parent.span_id
        return CallSpan(self._tracer, trace_id, parent_id, method=method, route=route)


class CallSpan:
    """Of one request; filled while it is served."""

    __slots__ = (
        "_attributes",
        "_began",
        "_events",
        "_name",
        "_parent_id",
        "_route",
        "_trace_id",
        "_tracer",
        "span_id",
    )

    def __init__(
        self, tracer: Tracer, trace_id: str, parent_id: int, *, method: str, route: str
    ) -> None:
        self.span_id = ids.new_span_id()
        self._tracer = tracer
        self._trace_id = trace_id
        self._parent_id = parent_id
        self._name = f"{method} {route}"
        self._route = route
        self._began = time.monotonic()
        self._events: list[Event] = []
        self._attributes: dict[str, Value] = {"http.request.method": method, "http.route": route}

    def submitted(self, submission: Submission) -> None:
        """The request was understood and goes to the router."""
        self._events.append(Event("submitted", time.monotonic()))
        sampling = submission.sampling
        self._attributes |= {
            "gen_ai.operation.name": _OPERATIONS[self._route],
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": submission.model,
            "gen_ai.request.stream": submission.streaming,
            "gen_ai.request.choice.count": submission.n,
            "gen_ai.request.max_tokens": max(each.max_tokens for each in submission.prompts),
            "gen_ai.request.temperature": round(sampling.temperature, 6),
            "gen_ai.request.top_p": round(sampling.top_p, 6),
            "gen_ai.usage.input_tokens": submission.prompt_tokens,
        }

    def generated(self, state: RequestState, *, arrived: float) -> None:
        """The router has nothing more for the request."""
        self._attributes |= {
            "gen_ai.usage.output_tokens": state.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": sum(state.cached_tokens),
            "gen_ai.response.finish_reasons": state.finish_reasons,
        }
        if state.first_at:
            self._events.append(Event("first_token", state.first_at))
            seconds = state.first_at - arrived
            self._attributes["gen_ai.response.time_to_first_chunk"] = seconds

    def end(self, error: TandemError | None, *, streamed: bool) -> None:
        """`streamed`: the status line had been sent before the error came."""
        if error is None or streamed:
            self._attributes["http.response.status_code"] = 200
        elif not isinstance(error, CancelledError | SlowClientError):  # they are sent nothing
            self._attributes["http.response.status_code"] = error.http_status
        self._tracer.record(
            Span(
                name=self._name,
                trace_id=self._trace_id,
                span_id=self.span_id,
                parent_id=self._parent_id,
                began=self._began,
                ended=time.monotonic(),
                attributes=self._attributes,
                events=self._events,
                error=error,
            )
        )
