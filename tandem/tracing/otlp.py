"""Spans to a collector, by OpenTelemetry's SDK: batches, in a thread of their own.

A collector that is away costs no request anything: spans wait in a bounded queue, and what does not
fit, or was tried in vain, is counted and dropped. The SDK's own log lines are kept back: it writes
one for every batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_NAMESPACE,
    SERVICE_VERSION,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tandem.tracing import TRACES_PATH
from tandem.tracing.spans import Span
from tandem.version import tandem_version

log = logging.getLogger(__name__)

MAX_WAITING = 2048
"""Spans kept for a collector that is slow or away; the next ones are dropped."""
BATCH_SPANS = 512
BATCH_MILLIS = 1000
"""How long a span waits for others."""
EXPORT_SECONDS = 5.0
"""For one batch, its retries included."""
FLUSH_SECONDS = 3.0
"""At the end of the process."""
GRPC_PORT = 4317
"""OTLP's own, where the endpoint names none."""
_NAMESPACE = "tandem"
_SERVER_ERROR = 500


class OtlpTracer:
    """A tracer that exports spans to a collector."""

    def __init__(self, exporter: CountingExporter, *, service: str, instance: str) -> None:
        """`exporter`: of `over_http` or `over_grpc`. `service` and `instance` name this process in
        the traces.
        """
        self._refused = 0
        self._recorded = 0
        self._exporter = exporter
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(
                {
                    SERVICE_NAMESPACE: _NAMESPACE,
                    SERVICE_NAME: service,
                    SERVICE_INSTANCE_ID: instance,
                    SERVICE_VERSION: tandem_version(),
                }
            ),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=MAX_WAITING,
                max_export_batch_size=BATCH_SPANS,
                schedule_delay_millis=BATCH_MILLIS,
            )
        )
        self._tracer = self._provider.get_tracer(_NAMESPACE, tandem_version())

    @property
    def exported(self) -> int:
        return self._exporter.exported

    @property
    def dropped(self) -> int:
        return self._refused + self._exporter.failed

    def record(self, span: Span) -> None:
        if self._recorded - self._exporter.taken >= MAX_WAITING:
            self._refused += 1
            return
        self._recorded += 1
        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), span.span_id
        # Where the wall clock is now: it may have been set since the process started.
        ahead = time.time() - time.monotonic()
        made = self._tracer.start_span(
            span.name,
            context=_context(span),
            kind=trace.SpanKind.INTERNAL if span.inside else trace.SpanKind.SERVER,
            attributes=span.attributes,
            start_time=_nanoseconds(span.began + ahead),
            links=_links(span),
        )
        for event in span.events:
            made.add_event(event.name, event.attributes, _nanoseconds(event.at + ahead))
        if span.error is not None:
            made.set_attribute("error.type", span.error.code)
            if span.error.http_status >= _SERVER_ERROR:
                made.set_status(trace.Status(trace.StatusCode.ERROR, span.error.message))
        made.end(_nanoseconds(span.ended + ahead))

    def close(self) -> None:
        """Export what waits, for FLUSH_SECONDS at most, and not where the collector is away
        already; then what is left is lost.
        """
        failed = self._exporter.failed
        if self._exporter.away:
            self._exporter.shutdown()
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        self._exporter.shutdown()
        if lost := self._recorded - self._exporter.exported - failed:
            log.warning("spans were lost at shutdown", extra={"count": lost})


class _GivenIds(IdGenerator):
    """The ids of the next span: its children were told them before it was made."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Complaints(logging.Filter):
    """Keeps back what the SDK logs of its exports."""

    def __init__(self, *loggers: str) -> None:
        super().__init__()
        self.first = ""
        """The first complaint of an export has the cause; the last one only says time ran out."""
        for name in loggers:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        self.first = self.first or record.getMessage()
        return False


_complaints = _Complaints(
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)


def over_http(url: str) -> CountingExporter:
    """Exports by OTLP over HTTP to a collector's base URL."""
    inner = HttpExporter(endpoint=url + TRACES_PATH, timeout=EXPORT_SECONDS)
    return CountingExporter(inner, urlsplit(url).netloc)


def over_grpc(url: str) -> CountingExporter:
    """Exports by OTLP over gRPC to "grpc://host:port", or with TLS to "grpcs://host:port"."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    parts = urlsplit(url)
    address = parts.netloc if parts.port else f"{parts.netloc}:{GRPC_PORT}"
    plain = parts.scheme == "grpc"
    return CountingExporter(
        OTLPSpanExporter(endpoint=address, insecure=plain, timeout=EXPORT_SECONDS), address
    )


class CountingExporter(SpanExporter):
    """One of OpenTelemetry's, which counts, and says once that its collector is away. One thread
    exports; `shutdown` may come from another, and twice.
    """

    def __init__(self, inner: SpanExporter, address: str) -> None:
        """`address`: the collector's, for log lines."""
        self._address = address
        self._inner = inner
        self.away = False
        """The last export failed."""
        self._closed = False
        self.taken = 0
        """Spans taken off the queue; each is then either exported or failed."""
        self.exported = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        if self._closed:
            self.failed += len(spans)
            return SpanExportResult.FAILURE
        _complaints.first = ""
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            if self.away:
                log.info("the trace collector takes spans again", extra={"address": self._address})
        else:
            self.failed += len(spans)
            if not self.away:
                extra = {"address": self._address, "reason": _complaints.first}
                log.warning("the trace collector takes no spans: they are dropped", extra=extra)
        self.away = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.shutdown()


def _context(span: Span) -> Context:
    """The context of a span's parent."""
    if not span.parent_id:
        return trace.set_span_in_context(trace.INVALID_SPAN)
    parent = trace.SpanContext(
        trace_id=int(span.trace_id, 16),
        span_id=span.parent_id,
        is_remote=not span.inside,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


def _links(span: Span) -> list[trace.Link]:
    if span.link is None:
        return []
    flags = trace.TraceFlags.SAMPLED if span.link.sampled else trace.TraceFlags.DEFAULT
    return [
        trace.Link(
            trace.SpanContext(
                trace_id=int(span.link.trace_id, 16),
                span_id=span.link.span_id,
                is_remote=True,
                trace_flags=trace.TraceFlags(flags),
            )
        )
    ]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
