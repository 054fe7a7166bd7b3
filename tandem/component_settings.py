"""Settings that several components have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Literal

from tandem import ranges, story_book, tracing
from tandem.config import setting
from tandem.logits.forms.limits import SpecLimits
from tandem.wire import prompt_chunks, tls
from tandem_loop_grpc import connections
from tandem_loop_grpc.connections import ConnectionLimits


@dataclass(frozen=True, kw_only=True)
class ComponentSettings:
    """Settings of every component."""

    tls_cert: str = setting(
        "",
        "PEM file of this component's certificate, for mutual TLS with the other components. The"
        " file is read again when it changes. Set it with tls_key and tls_ca; without all three"
        " gRPC is plaintext.",
    )
    tls_key: str = setting("", "PEM file of the key of tls_cert, without a password.")
    tls_ca: str = setting(
        "", "PEM file of the CA whose certificates other components must show: Tandem's own."
    )
    tls_peer_name: str = setting(
        "tandem",
        "DNS name below which certificates bear roles: frontend.NAME, router.NAME, prefill.NAME,"
        " decode.NAME, and worker.NAME of aggregated workers. Addresses are not compared.",
    )
    otlp_endpoint: str = setting(
        "",
        "URL of an OpenTelemetry collector: http://collector:4318 for OTLP over HTTP,"
        " grpc://collector:4317 for OTLP over gRPC, https and grpcs with TLS; empty: no tracing."
        " See docs/tracing.md.",
    )
    trace_sample_ratio: float = setting(
        0.1,
        "Share of the requests that are traced, 0 to 1, where the client's `traceparent` does not"
        " say. The frontend alone decides; other components trace what the frontend traces.",
        at_least=0,
        at_most=1,
    )
    log_format: Literal["console", "json"] = setting("console", "Format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Lowest level that is logged."
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve."""
        ranges.check(self)
        tls.check(self)
        tracing.check(self.otlp_endpoint)


@dataclass(frozen=True, kw_only=True)
class GrpcPortSettings(ComponentSettings):
    """Settings of components that are dialled by others: routers and workers."""

    prompt_chunks_mb: int = setting(
        prompt_chunks.DEFAULT_MB,
        "Memory for what earlier prompts began with, MiB, at most 64 for each stream that prompts"
        " come by. A later prompt of the stream that begins so then travels without that part. 0:"
        " prompts travel whole.",
        at_least=0,
    )
    grpc_reflection: bool = setting(
        False,
        "Serve gRPC's server reflection, which tells whoever asks on the gRPC port which calls"
        " there are, for grpcurl.",
    )
    grpc_max_connections: int = setting(
        connections.MOST_CONNECTIONS,
        "Connections that each gRPC port takes; one more is told ENHANCE_YOUR_CALM and closed.",
        at_least=1,
    )
    grpc_max_connections_of_a_client: int = setting(
        connections.MOST_OF_A_CLIENT,
        "Connections of one client that each gRPC port takes: of one address, with the same names"
        " in its certificate.",
        at_least=1,
    )
    grpc_max_connection_idle_seconds: float = setting(
        connections.IDLE_SECONDS,
        "A connection to a gRPC port that has no call for so long is told GOAWAY and closed. 0:"
        " never.",
        at_least=0,
    )
    grpc_max_connection_age_seconds: float = setting(
        connections.AGE_SECONDS,
        "A connection to a gRPC port takes new calls for so long, or up to a tenth less, and is"
        " closed when its last call has ended: clients dial again, and calls go on. 0: for ever.",
        at_least=0,
    )

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The bounds of a gRPC port's connections."""
        return ConnectionLimits(
            most=self.grpc_max_connections,
            most_of_a_client=self.grpc_max_connections_of_a_client,
            idle_seconds=self.grpc_max_connection_idle_seconds or inf,
            age_seconds=self.grpc_max_connection_age_seconds or inf,
        )


@dataclass(frozen=True, kw_only=True)
class SpecSettings:
    """Settings of components that read a request's logits processors: frontends and workers."""

    max_processor_bytes: int = setting(
        262_144,
        "Largest arguments of all logits processors of a request, forms of answers (`guided_...`,"
        " `response_format`) included, as JSON; a frontend's at most what the workers take.",
        above=0,
    )
    max_processor_depth: int = setting(
        64, "Deepest nesting of the arguments of logits processors.", above=0
    )
    max_processor_values: int = setting(
        65_536, "Most values (members and items) in the arguments of logits processors.", above=0
    )

    @cached_property
    def spec_limits(self) -> SpecLimits:
        """The bounds of a request's logits processors."""
        return SpecLimits(
            max_bytes=self.max_processor_bytes,
            max_depth=self.max_processor_depth,
            max_values=self.max_processor_values,
        )


@dataclass(frozen=True, kw_only=True)
class StorySettings:
    """Settings of components that keep the stories of ended requests: frontends and routers."""

    max_stories: int = setting(
        story_book.DEFAULT_MOST,
        "Ended requests whose stories /debug/requests of metrics_listen still tells, the oldest"
        " forgotten first; half of the places are kept for refused requests. 0: no stories are"
        " kept.",
        at_least=0,
    )
    max_story_bytes: int = setting(
        story_book.DEFAULT_BYTES,
        "Memory for the stories of ended requests: some 900 bytes each in a frontend; in a router"
        " some 1,300, 600 for each further output, and 100 for each worker that could not be"
        " chosen.",
        at_least=0,
    )
    log_requests: bool = setting(
        False,
        "Log a line at the end of each request that holds its story, for `tandem why --log`; else"
        " at level debug.",
    )
