"""The frontend's life: load the model's files, listen, talk to the router, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from frontend import chat_template
from frontend.admission import Admission
from frontend.app import App
from frontend.config import FrontendConfig
from frontend.connection import Bounds, Connection
from frontend.endpoints import Endpoints
from frontend.metrics import Metrics
from frontend.router_link import RouterLink
from frontend.switchboard import Switchboard
from frontend.tokenizer import Tokenizer
from tandem.errors import ConfigError, DrainingError

log = logging.getLogger(__name__)

_BACKLOG = 2048
_LAST_WORDS_SECONDS = 2
"""After draining, time that the last bytes have to leave."""


async def serve(
    config: FrontendConfig,
    stop: asyncio.Event,
    *,
    on_started: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until `stop` is set, then drain. `on_started` is told the port.

    Raises ConfigError where the model's files or the address cannot be used.
    """
    metrics = Metrics()
    link = RouterLink(config.router)
    endpoints, switchboard = _build(config, metrics, link)
    app = App(config, endpoints, metrics)
    listener = _listen(config.listen)
    server = _Server(_uvicorn_config(config, app))
    async with asyncio.TaskGroup() as group:
        dialing = group.create_task(link.run(switchboard))
        serving = group.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        log.info("serving", extra={"address": f"port {port}"})
        on_started(port)
        await stop.wait()
        await _drain(endpoints, switchboard, config.drain_seconds)
        server.should_exit = True
        await serving
        dialing.cancel()


def _build(
    config: FrontendConfig, metrics: Metrics, link: RouterLink
) -> tuple[Endpoints, Switchboard]:
    model_path = Path(config.model_path)
    tokenizer = Tokenizer(model_path)
    template = chat_template.load(model_path)
    if template is None:
        log.warning("the model has no chat template: chat completions are refused")
    switchboard = Switchboard(
        link,
        metrics,
        model=config.model_name,
        tokenizer_sha256=tokenizer.sha256,
        max_open=config.max_open_requests,
    )
    admission = Admission(config, tokenizer, template)
    endpoints = Endpoints(config, tokenizer, admission, switchboard, metrics)
    metrics.watch(
        open_requests=lambda: switchboard.open_requests,
        backlog_bytes=lambda: switchboard.backlog_bytes,
        ready=lambda: endpoints.serving,
        draining=lambda: endpoints.draining,
    )
    return endpoints, switchboard


def _uvicorn_config(config: FrontendConfig, app: App) -> uvicorn.Config:
    bounds = Bounds(
        max_header_bytes=config.max_header_bytes,
        receive_timeout_seconds=config.receive_timeout_seconds,
        client_stall_seconds=config.client_stall_seconds,
    )
    return uvicorn.Config(
        app,  # its types are plain dicts
        http=functools.partial(Connection, bounds=bounds),  # type: ignore[arg-type]
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
    )


class _Server(uvicorn.Server):
    """Leaves signals to tandem.process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if not (host and colon):
        raise ConfigError(f"listen must be HOST:PORT, such as 0.0.0.0:8000, not {address!r}")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {address!r}: {error}") from error
    # Inherited by each accepted socket. Else a small chunk waits for the previous one's ACK: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _drain(endpoints: Endpoints, switchboard: Switchboard, seconds: float) -> None:
    """Start nothing new; let open requests finish; end with an error what still runs after
    `seconds`.
    """
    endpoints.draining = True
    log.info("draining", extra={"count": switchboard.open_requests})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await switchboard.idle()
    switchboard.fail_all(DrainingError("The frontend shut down before the request had finished"))
