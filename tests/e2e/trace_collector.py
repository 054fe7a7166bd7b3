"""A small OpenTelemetry collector: takes OTLP over HTTP or gRPC, and keeps the spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

SERVER, INTERNAL = trace_pb2.Span.SPAN_KIND_SERVER, trace_pb2.Span.SPAN_KIND_INTERNAL
ERROR, UNSET = trace_pb2.Status.STATUS_CODE_ERROR, trace_pb2.Status.STATUS_CODE_UNSET


@dataclass(frozen=True, kw_only=True)
class Received:
    """A span as it came."""

    resource: dict[str, Any]
    name: str
    trace_id: str
    span_id: int
    parent_id: int
    kind: int
    began: int
    """Nanoseconds of the wall clock, as `ended`."""
    ended: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    moments: list[int]
    """When each event happened."""
    status: int
    message: str
    links: list[tuple[str, int]]
    """Trace id and span id of each."""

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


@dataclass
class Collector:
    port: int = 0
    scheme: str = "http"
    answer: Callable[[], int] = lambda: 200
    """The status of the next answer."""
    spans: list[Received] = field(default_factory=list)
    requests: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            self.requests += 1
            self.spans += _received(request)
            self._changed.notify_all()

    def of(self, trace_id: str) -> list[Received]:
        with self._changed:
            return [span for span in self.spans if span.trace_id == trace_id]

    def wait(
        self, trace_id: str, count: int, *, within: float = 10.0, settle: float = 0.0
    ) -> list[Received]:
        """The spans of a trace, once `count` have come and `settle` seconds have passed, by the
        time they began.
        """
        deadline = time.monotonic() + within
        with self._changed:
            while len(found := [s.name for s in self.spans if s.trace_id == trace_id]) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"{found} came of {trace_id}, not {count}"
                self._changed.wait(left)
        time.sleep(settle)
        return sorted(self.of(trace_id), key=lambda span: span.began)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            status = collector.answer() if self.path == "/v1/traces" else 404
            if status == 200:
                collector.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def collecting_by_grpc() -> Iterator[Collector]:
    """The same collector, spoken to by gRPC: a status that is not 200 is answered UNAVAILABLE, and
    400 INVALID_ARGUMENT.
    """
    collector = Collector(scheme="grpc")

    class Servicer(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: Any) -> Any:
            status = collector.answer()
            if status != 200:
                refusal = grpc.StatusCode.INVALID_ARGUMENT, "no such span"
                context.abort(*(refusal if status == 400 else (grpc.StatusCode.UNAVAILABLE, "")))
            collector.take(request)
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        add_TraceServiceServicer_to_server(Servicer(), server)
        collector.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield collector
        finally:
            server.stop(None).wait()


def _received(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    resource=about,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=int.from_bytes(span.span_id),
                    parent_id=int.from_bytes(span.parent_span_id),
                    kind=span.kind,
                    began=span.start_time_unix_nano,
                    ended=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    events=[(event.name, _attributes(event.attributes)) for event in span.events],
                    moments=[event.time_unix_nano for event in span.events],
                    status=span.status.code,
                    message=span.status.message,
                    links=[
                        (link.trace_id.hex(), int.from_bytes(link.span_id)) for link in span.links
                    ],
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
