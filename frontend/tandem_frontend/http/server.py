"""The HTTP server: uvicorn, without what the process does for itself (signals, logs, headers)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from uvicorn._types import ASGI3Application

from tandem import sockets
from tandem.byte_budget import ByteBudget
from tandem.certificates import CertificateFiles
from tandem.errors import TandemError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.connection import Connection
from tandem_frontend.http.draining import Draining

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 32 * 1024
"""What the kernel may keep of an answer for a client that does not read; Linux doubles it, for its
own book-keeping, to connection.KERNEL_BYTES. Left to itself it takes up to 4 MiB, and nobody
notices that client for answers of an ordinary size.
"""
_LAST_WORDS_SECONDS = 2
"""After draining, time that the last bytes have to leave."""
_DATE_SECONDS = 1.0


class HttpServer(uvicorn.Server):
    """Serves one ASGI application on one socket, until `end`."""

    def __init__(
        self,
        app: ASGI3Application,
        *,
        bounds: FrontendConfig,
        budget: ByteBudget,
        draining: Draining,
        on_refused: Callable[[TandemError, str], object],
        keep_alive_seconds: int,
        https: CertificateFiles | None,
    ) -> None:
        """`bounds`, `budget`, `on_refused`: see Connection. `https`: None serves plain HTTP."""
        self._ends = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(  # type: ignore[arg-type]
                    Connection,
                    bounds=bounds,
                    budget=budget,
                    draining=draining,
                    on_refused=on_refused,
                ),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=keep_alive_seconds,
                timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
                ssl_context_factory=None if https is None else lambda *_: https.server_context(),
            )
        )

    @property
    def connections(self) -> set[Connection]:
        """The open connections: the live set, not a copy."""
        return cast("set[Connection]", self.server_state.connections)

    def end(self) -> None:
        """Have `serve` return, once what is open has ended."""
        self.should_exit = True
        self._ends.set()

    async def main_loop(self) -> None:
        """uvicorn's own wakes an idle process ten times a second, to look whether it is to end."""
        while not await self.on_tick(0):  # which sets the date of answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn leaves those open whose clients do not take their last words in time."""
        await super().shutdown(sockets)
        for connection in list(self.connections):
            connection.cut()
        await asyncio.sleep(0)  # a transport closes a turn after it is told to

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn catches none: signals are tandem.process's."""
        yield


def listen(address: str) -> socket.socket:
    """Raises ConfigError where `address` cannot be listened on."""
    listener = sockets.listen(address, setting="listen", backlog=_BACKLOG)
    # Each accepted socket inherits both.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    # Else a small chunk waits for the previous one's ACK: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
