"""The connections to one guardrail service: opened when they are needed, and few."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandem_guardrails.adapters.breaker import UnavailableError
from tandem_guardrails.adapters.connection import AdapterConnection

KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s after which common servers close, so that no request meets a closing one."""

GREETING_SECONDS = 0.005
"""A new connection is listened to for so long: a service that speaks before it is asked would go on
to answer each call with the answer before it."""


class Connections:
    """At most `most` at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        most: int,
        connect_seconds: float,
        retries: int,
        max_bytes: int,
    ) -> None:
        """`retries`: further attempts to connect. `max_bytes`: of one answer's body."""
        self._host = host
        self._port = port
        self._tls = tls
        self._turns = asyncio.Semaphore(most)
        self._connect_seconds = connect_seconds
        self._retries = retries
        self._max_bytes = max_bytes
        self._idle: deque[tuple[AdapterConnection, float]] = deque()
        """With the time from which on each is not used again; the longest unused first."""
        self._open: set[AdapterConnection] = set()

    @property
    def full(self) -> bool:
        """A call would have to wait."""
        return self._turns.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AdapterConnection]:
        """A connection of one's own. Raises ScoringError: `unreachable`."""
        async with self._turns:
            connection = await self._waiting_one() or await self._connect()
            self._open.add(connection)
            try:
                yield connection
            finally:
                self._open.discard(connection)
                if connection.usable:
                    until = asyncio.get_running_loop().time() + KEEP_ALIVE_SECONDS
                    self._idle.append((connection, until))
                else:
                    connection.close()

    def close(self) -> None:
        """Close every connection, also one that is in use."""
        for connection in (*self._open, *(connection for connection, _ in self._idle)):
            connection.close()
        self._idle.clear()

    async def _waiting_one(self) -> AdapterConnection | None:
        """One that is open and idle, the last used first."""
        if not self._idle:
            return None
        for _ in range(2):  # what lies in a socket is read meanwhile, and seen to be too much
            await asyncio.sleep(0)
        now = asyncio.get_running_loop().time()
        while self._idle and (self._idle[0][1] < now or not self._idle[0][0].usable):
            self._idle.popleft()[0].close()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> AdapterConnection:
        retries = self._retries
        while True:
            try:
                return await self._try()
            except OSError as error:
                if retries == 0 or isinstance(error, TimeoutError):
                    raise UnavailableError("unreachable") from None
                retries -= 1

    async def _try(self) -> AdapterConnection:
        """Raises OSError, of which a TimeoutError and one of TLS are kinds."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_seconds):
            _, connection = await loop.create_connection(
                lambda: AdapterConnection(max_bytes=self._max_bytes),
                self._host,
                self._port,
                ssl=self._tls,
            )
        await asyncio.sleep(GREETING_SECONDS)
        return connection
