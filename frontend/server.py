"""The frontend's life: load the model's files, listen, talk to the router, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from asyncio import TaskGroup
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import uvicorn

from frontend import chat_template
from frontend.admission import Admission
from frontend.app import App
from frontend.config import FrontendConfig
from frontend.connection import Bounds, Connection
from frontend.endpoints import Endpoints
from frontend.farewell import Farewell
from frontend.metrics import Metrics
from frontend.objectives import Objectives
from frontend.router_link import RouterLink
from frontend.spans import CallSpans
from frontend.switchboard import Switchboard
from frontend.tokenizer import Tokenizer
from tandem import sockets
from tandem.admin import Admin, from_loop
from tandem.certificates import CertificateFiles, ExpiryCollector
from tandem.errors import DrainingError
from tandem.metrics import Drain
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.wire import tls
from tandem.wire.tls import PeerTls

log = logging.getLogger(__name__)

_BACKLOG = 2048
_LAST_WORDS_SECONDS = 2
"""After draining, time that the last bytes have to leave."""


async def serve(
    config: FrontendConfig,
    stop: asyncio.Event,
    *,
    tracer: Tracer | None = None,
    on_started: Callable[[int, int], None] = lambda port, metrics_port: None,
) -> None:
    """Serve until `stop` is set, then drain. `tracer`: where spans go. `on_started` is told both
    ports.

    Raises ConfigError where the model's files or the address cannot be used.
    """
    metrics = Metrics(
        model=config.model_name,
        objectives=Objectives(config.slo_ttft_seconds, config.slo_itl_seconds),
    )
    link = RouterLink(config.router, metrics.router, tls=PeerTls.of(config))
    farewell = Farewell()
    endpoints, switchboard = _build(config, metrics, farewell)
    app = App(config, endpoints, metrics, _spans(config, tracer))
    server = _Server(_uvicorn_config(config, app, farewell, _https(config)))
    connections = cast("set[Connection]", server.server_state.connections)
    admin = Admin(metrics.registry, ready=lambda: endpoints.serving)
    drained = Drain("frontend")
    metrics.registry.register(drained)
    metrics.registry.register(SpanCollector(tracer))
    metrics.registry.register(
        ExpiryCollector({**tls.files(config), "https_cert": config.https_cert})
    )
    with _listen(config.listen) as listener:
        async with admin.serving(config.metrics_listen) as metrics_port, TaskGroup() as group:
            dialing = group.create_task(link.run(switchboard))
            serving = group.create_task(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            log.info("serving", extra={"address": f"port {port}"})
            on_started(port, metrics_port)
            await stop.wait()
            drained.begin()
            await _drain(farewell, connections, switchboard, config.drain_seconds)
            drained.aborted = switchboard.open_requests
            drained.end()
            switchboard.fail_all(
                DrainingError("The frontend shut down before the request had finished")
            )
            server.should_exit = True
            await serving
            dialing.cancel()


def _build(
    config: FrontendConfig, metrics: Metrics, farewell: Farewell
) -> tuple[Endpoints, Switchboard]:
    model_path = Path(config.model_path)
    tokenizer = Tokenizer(model_path)
    template = chat_template.load(model_path)
    if template is None:
        log.warning("the model has no chat template: chat completions are refused")
    switchboard = Switchboard(
        metrics,
        model=config.model_name,
        tokenizer_sha256=tokenizer.sha256,
        max_open=config.max_open_requests,
        router_wait_seconds=config.router_wait_seconds,
    )
    admission = Admission(config, tokenizer, template)
    endpoints = Endpoints(config, tokenizer, admission, switchboard, metrics, farewell)
    loop = asyncio.get_running_loop()
    metrics.watch(
        open_requests=lambda: switchboard.open_requests,
        backlog_bytes=from_loop(loop, lambda: switchboard.backlog_bytes),
        ready=lambda: endpoints.serving,
        draining=lambda: endpoints.draining,
    )
    return endpoints, switchboard


def _spans(config: FrontendConfig, tracer: Tracer | None) -> CallSpans | None:
    if tracer is None:
        return None
    return CallSpans(tracer, sample_ratio=config.trace_sample_ratio)


def _https(config: FrontendConfig) -> CertificateFiles | None:
    if not config.https_cert:
        return None
    return CertificateFiles(cert=config.https_cert, key=config.https_key)


def _uvicorn_config(
    config: FrontendConfig, app: App, farewell: Farewell, https: CertificateFiles | None
) -> uvicorn.Config:
    bounds = Bounds(
        max_header_bytes=config.max_header_bytes,
        receive_timeout_seconds=config.receive_timeout_seconds,
        client_stall_seconds=config.client_stall_seconds,
    )
    return uvicorn.Config(
        app,  # its types are plain dicts
        http=functools.partial(Connection, bounds=bounds, farewell=farewell),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=config.keep_alive_seconds,
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        ssl_context_factory=None if https is None else lambda *_: https.server_context(),
    )


class _Server(uvicorn.Server):
    """Leaves signals to tandem.process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str) -> socket.socket:
    listener = sockets.listen(address, setting="listen", backlog=_BACKLOG)
    # Inherited by each accepted socket. Else a small chunk waits for the previous one's ACK: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _drain(
    farewell: Farewell, connections: set[Connection], switchboard: Switchboard, seconds: float
) -> None:
    """Let open requests finish and clients go, for so long."""
    log.info("draining", extra={"count": switchboard.open_requests})
    farewell.begin(connections, seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await switchboard.idle()
            await farewell.taken(connections)
