"""The frontend's lifecycle: load the model's files, listen, talk to the router, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import TaskGroup
from collections.abc import Callable

from frontend import playground
from frontend.app import App
from frontend.config import FrontendConfig
from frontend.http.browsers import Browsers
from frontend.http.capacity import Capacity
from frontend.http.connection import Connection, ConnectionBounds
from frontend.http.draining import Draining
from frontend.http.server import HttpServer, listen
from frontend.http.spans import CallSpans
from frontend.metrics import Metrics
from frontend.openai.endpoints import Endpoints
from frontend.openai.generation import Generation
from frontend.openai.moderations.endpoint import Moderations
from frontend.openai.reading.bodies import Reading
from frontend.openai.reading.models import Models
from frontend.openai.reading.reader import field_rules
from frontend.openai.reading.readers import Readers
from frontend.openai.sessions import Sessions
from frontend.slo import Slo
from frontend.tenants import Tenants
from tandem import sockets
from tandem.admin import Admin, from_loop
from tandem.byte_budget import ByteBudget
from tandem.certificates import CertificateFiles, ExpiryCollector
from tandem.complaints import Complaints
from tandem.errors import DrainingError, TandemError
from tandem.keys.file import KeyFile
from tandem.metrics import DrainMetrics, HeldMetrics
from tandem.sockets import is_loopback
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.routers import Routers
from tandem.wire import tls
from tandem.wire.tls import PeerTls

log = logging.getLogger(__name__)

_OTHER_FILES = 512
"""File descriptors for refused connections and for the process itself, beside taken connections."""


async def serve(
    config: FrontendConfig,
    stop: asyncio.Event,
    *,
    tracer: Tracer | None = None,
    on_started: Callable[[int, int], object] = lambda port, metrics_port: None,
) -> None:
    """Serve until `stop` is set, then drain. `tracer`: where spans go. `on_started` is told both
    ports.

    Raises ConfigError where the model's files or the address cannot be used.
    """
    metrics = _metrics(config)
    tenants = _tenants(config, metrics)
    budget = ByteBudget(config.max_held_bytes)
    metrics.registry.register(HeldMetrics("frontend", budget))
    routers = Routers(
        config.router,
        metrics.upstream,
        budget,
        most=config.max_routers,
        silence_seconds=config.router_silence_seconds,
        tls=PeerTls.of(config),
    )
    draining = Draining()
    complaints = Complaints(log)
    readers = Readers(config)
    moderations = Moderations(config, metrics, readers)
    app, endpoints, demultiplexer, models = _build(
        config, metrics, budget, tenants, draining, complaints, readers, moderations, tracer
    )

    def refused(error: TandemError, peer: str) -> None:
        metrics.count_refused(error)
        complaints.warn("connection refused", error.code, peer=peer, reason=error.message)

    server = HttpServer(
        app,  # type: ignore[arg-type]  # its types are plain dicts
        bounds=_bounds(config),
        budget=budget,
        draining=draining,
        on_refused=refused,
        keep_alive_seconds=config.keep_alive_seconds,
        https=_https(config),
    )
    metrics.watch_connections(lambda: len(server.connections))
    admin = Admin(metrics.registry, ready=lambda: endpoints.serving)
    drained = DrainMetrics("frontend")
    metrics.registry.register(drained)
    metrics.registry.register(SpanCollector(tracer))
    metrics.registry.register(
        ExpiryCollector({**tls.files(config), "https_cert": config.https_cert})
    )
    with listen(config.listen) as listener:
        async with admin.serving(config.metrics_listen) as metrics_port, TaskGroup() as group:
            dialing = group.create_task(routers.run(demultiplexer))
            following = (
                group.create_task(tenants.follow()),
                group.create_task(models.follow()),
                group.create_task(moderations.follow()),
            )
            serving = group.create_task(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            log.info("serving", extra={"address": sockets.bound(config.listen, port)})
            on_started(port, metrics_port)
            await stop.wait()
            drained.begin()
            await _drain(draining, server.connections, demultiplexer, config.drain_seconds)
            drained.aborted = demultiplexer.open_requests
            drained.end()
            unfinished = DrainingError("The frontend shut down before the request had finished")
            demultiplexer.fail_all(unfinished)
            moderations.fail_all(unfinished)
            server.end()
            await serving
            await readers.close()
            dialing.cancel()
            complaints.close()
            for each in following:
                each.cancel()


async def check(config: FrontendConfig) -> None:
    """Raises ConfigError for what `serve` would refuse of its settings on any machine."""
    metrics, budget, readers = _metrics(config), ByteBudget(config.max_held_bytes), Readers(config)
    tenants = _tenants(config, metrics)
    moderations = Moderations(config, metrics, readers)
    PeerTls.of(config)
    _build(
        config, metrics, budget, tenants, Draining(), Complaints(log), readers, moderations, None
    )
    if https := _https(config):
        https.server_context()


def _metrics(config: FrontendConfig) -> Metrics:
    return Metrics(
        slo=Slo(config.slo_ttft_seconds, config.slo_itl_seconds),
        key_series=config.key_series,
    )


def _tenants(config: FrontendConfig, metrics: Metrics) -> Tenants:
    """Raises ConfigError where the file of keys cannot be used."""
    return Tenants(
        config.api_keys,
        KeyFile(config.api_keys_file) if config.api_keys_file else None,
        metrics.keys,
        frontends=config.key_limit_shares,
        max_open=config.max_open_requests,
    )


def _build(
    config: FrontendConfig,
    metrics: Metrics,
    budget: ByteBudget,
    tenants: Tenants,
    draining: Draining,
    complaints: Complaints,
    readers: Readers,
    moderations: Moderations,
    tracer: Tracer | None,
) -> tuple[App, Endpoints, Demultiplexer, Models]:
    demultiplexer = Demultiplexer(
        metrics.upstream,
        complaints,
        budget,
        max_open=config.max_open_requests,
        max_request_bytes=config.max_request_bytes,
        max_backlog_bytes=config.max_backlog_bytes,
        router_wait_seconds=config.router_wait_seconds,
    )
    models = Models(config, demultiplexer, metrics)
    rules = field_rules(config)
    sessions = Sessions(config.session_headers, config.session_end_headers)
    reading = Reading(models, readers, metrics, rules, sessions)
    endpoints = Endpoints(models, reading, demultiplexer, draining, rules)
    generation = Generation(
        reading,
        demultiplexer,
        metrics,
        keep_alive_seconds=config.sse_keep_alive_seconds,
    )
    loop = asyncio.get_running_loop()
    metrics.watch(
        open_requests=lambda: demultiplexer.open_requests,
        backlog_bytes=from_loop(loop, lambda: demultiplexer.backlog_bytes),
        ready=lambda: endpoints.serving,
        draining=lambda: draining.began,
    )
    app = App(
        tenants,
        endpoints,
        generation,
        moderations,
        metrics,
        browsers=_browsers(config),
        capacity=Capacity(max_requests=config.max_open_requests, budget=budget),
        complaints=complaints,
        files=playground.files() if config.playground else {},
        operator_paths=config.operator_paths,
        spans=_spans(config, tracer),
        trust_traceparent=config.trust_traceparent,
    )
    return app, endpoints, demultiplexer, models


def _spans(config: FrontendConfig, tracer: Tracer | None) -> CallSpans | None:
    if tracer is None:
        return None
    return CallSpans(tracer, sample_ratio=config.trace_sample_ratio)


def _browsers(config: FrontendConfig) -> Browsers:
    host = config.listen.rpartition(":")[0].strip("[]")
    asks = config.api_keys or config.api_keys_file
    local = is_loopback(host.lower()) and not asks and "*" not in config.allowed_hosts
    return Browsers(
        origins=config.cors_origins, local_names=config.allowed_hosts if local else None
    )


def _max_connections(config: FrontendConfig) -> int:
    """As many as were asked for, or as files may be open."""
    wanted = config.max_connections + _OTHER_FILES
    missing = wanted - sockets.allow_files(wanted)
    if not missing:
        return config.max_connections
    most = max(1, config.max_connections - missing)
    log.warning("the process may not open enough files for max_connections", extra={"count": most})
    return most


def _https(config: FrontendConfig) -> CertificateFiles | None:
    if not config.https_cert:
        return None
    return CertificateFiles(cert=config.https_cert, key=config.https_key)


def _bounds(config: FrontendConfig) -> ConnectionBounds:
    return ConnectionBounds(
        max_header_bytes=config.max_header_bytes,
        max_body_bytes=config.max_body_bytes,
        receive_timeout_seconds=config.receive_timeout_seconds,
        client_stall_seconds=config.client_stall_seconds,
        max_connections=_max_connections(config),
    )


async def _drain(
    draining: Draining, connections: set[Connection], demultiplexer: Demultiplexer, seconds: float
) -> None:
    """Let open requests finish and clients go, for so long."""
    log.info("draining", extra={"count": demultiplexer.open_requests})
    draining.begin(seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await demultiplexer.idle()
            await draining.taken(connections)
