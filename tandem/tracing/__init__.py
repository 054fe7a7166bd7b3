"""Traces of requests: OpenTelemetry spans, exported by OTLP over HTTP or gRPC.

A span is made when what it tells of is over, from times that were noted on the way: nothing is done
for a token. Who is traced is decided once, by the frontend; the others follow it, by the parent
span that a request brings (0: not traced). Nothing of OpenTelemetry is imported while
`otlp_endpoint` is empty. No span holds a prompt, an output, a header or a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import urlsplit

from tandem.errors import ConfigError
from tandem.tracing.spans import Tracer

TRACES_PATH = "/v1/traces"
_PROTOCOLS = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
"""OTLP's protocols, by the scheme of the endpoint."""


def check(endpoint: str) -> None:
    """Raises ConfigError for values that can never serve."""
    if not endpoint:
        return
    url = urlsplit(endpoint)
    if url.scheme not in _PROTOCOLS or not url.hostname or url.username or url.query:
        raise ConfigError(
            "otlp_endpoint must be the URL of a collector, such as http://collector:4318 or"
            " grpc://collector:4317; a key for it goes into the variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    if _PROTOCOLS[url.scheme] == "grpc" and url.path.strip("/"):
        raise ConfigError("otlp_endpoint has no path where the collector is spoken to by gRPC")
    if url.path.rstrip("/").endswith(TRACES_PATH):
        raise ConfigError(f"otlp_endpoint is the collector's base URL, without {TRACES_PATH}")


@contextmanager
def exporting(endpoint: str, *, service: str, instance: str) -> Iterator[Tracer | None]:
    """Where this process's spans go; None without an endpoint. What waits at the end is exported
    within tandem.tracing.otlp.FLUSH_SECONDS.

    Raises ConfigError where the packages for it are not installed.
    """
    if not endpoint:
        yield None
        return
    protocol = _PROTOCOLS[urlsplit(endpoint).scheme]
    packages = "opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{protocol}"
    if not all(map(_installed, packages)):
        raise ConfigError(
            "otlp_endpoint needs the OpenTelemetry SDK: pip install 'tandem-serving[tracing]', or"
            " leave it empty"
        )
    from tandem.tracing import otlp  # only where it is asked for

    exporter = otlp.over_grpc if protocol == "grpc" else otlp.over_http
    tracer = otlp.OtlpTracer(exporter(endpoint.rstrip("/")), service=service, instance=instance)
    try:
        yield tracer
    finally:
        tracer.close()


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
