"""The frontend's lifecycle: listen, talk to the router, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import TaskGroup
from collections.abc import Callable

from tandem import sockets
from tandem.errors import DrainingError
from tandem.tracing.spans import Tracer
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.server import HttpServer, listen
from tandem_frontend.parts import Parts

log = logging.getLogger(__name__)


async def serve(
    config: FrontendConfig,
    stop: asyncio.Event,
    *,
    tracer: Tracer | None = None,
    on_started: Callable[[int, int], object] = lambda port, metrics_port: None,
) -> None:
    """Serve until `stop` is set, then drain. `on_started`: told both ports. Raises ConfigError."""
    parts = Parts(config, tracer)
    server = parts.server()
    parts.metrics.watch_connections(lambda: len(server.connections))
    with listen(config.listen) as listener:
        async with parts.admin.serving(config.metrics_listen) as metrics_port, TaskGroup() as group:
            following = (
                parts.routers.run(parts.demultiplexer),
                parts.tenants.follow(),
                parts.models.follow(),
                parts.moderations.follow(),
            )
            tasks = [group.create_task(each) for each in following]
            serving = group.create_task(server.serve(sockets=[listener]))
            port: int = listener.getsockname()[1]
            log.info("serving", extra={"address": sockets.bound(config.listen, port)})
            on_started(port, metrics_port)
            await stop.wait()
            await _drain(parts, server)
            server.end()
            await serving
            await parts.readers.close()
            parts.complaints.close()
            for each in tasks:
                each.cancel()


async def check(config: FrontendConfig) -> None:
    """Raises ConfigError for what `serve` would refuse of its settings on any machine."""
    parts = Parts(config)
    if parts.https:
        parts.https.server_context()


async def _drain(parts: Parts, server: HttpServer) -> None:
    """Let open requests finish and clients go within `drain_seconds`; then fail the rest."""
    demultiplexer, seconds = parts.demultiplexer, parts.config.drain_seconds
    parts.drained.begin()
    log.info("draining", extra={"count": demultiplexer.open_requests})
    parts.draining.begin(seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await demultiplexer.idle()
            await parts.draining.taken(server.connections)
    parts.drained.aborted = demultiplexer.open_requests
    parts.drained.end()
    unfinished = DrainingError("The frontend shut down before the request had finished")
    demultiplexer.fail_all(unfinished)
    parts.moderations.fail_all(unfinished)
