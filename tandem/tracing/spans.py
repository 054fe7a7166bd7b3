"""What a span says, and who is traced: plain values, without OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.errors import TandemError
from tandem.ids import Traceparent

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]
_LOW_BITS = 2**64


@dataclass(slots=True, frozen=True)
class SpanEvent:
    """A moment of a span. `at`: seconds of time.monotonic, as all times here."""

    name: str
    at: float
    attributes: Attributes | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Span:
    """One piece of work that is over, with its times and attributes."""

    name: str
    trace_id: str
    """32 hex digits."""
    span_id: int
    parent_id: int
    """0: the span begins its trace."""
    began: float
    ended: float
    attributes: Attributes
    events: Sequence[SpanEvent] = ()
    error: TandemError | None = None
    """A fault of ours (status 500 and above) makes the span an error. A client's mistake, or its
    going away, is only noted, as OpenTelemetry's rules for HTTP servers want."""
    inside: bool = False
    """Whether the parent is a span of this process."""
    link: Traceparent | None = None
    """A span of another trace, which asked for this one and is not trusted to go on here."""


class Tracer(Protocol):
    """Where finished spans go: to a collector, or nowhere."""

    @property
    def exported(self) -> int:
        """Spans that a collector has taken."""
        ...

    @property
    def dropped(self) -> int:
        """Spans that none has taken and that are not kept."""
        ...

    def record(self, span: Span) -> None:
        """Never waits, and never fails. To be called from one thread."""
        ...


class Sampler:
    """Decides who is traced, as OpenTelemetry's ParentBased(TraceIdRatioBased) does: a caller's own
    decision holds; without one, the trace id decides, so that all who ask come to the same.
    """

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * _LOW_BITS)

    def samples(self, trace_id: str, parent: Traceparent | None) -> bool:
        if parent is not None:
            return parent.sampled
        return int(trace_id[16:], 16) < self._bound
