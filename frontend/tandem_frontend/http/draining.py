"""Connection draining: a frontend ends without a lost request of any client.

A client keeps its connections and sends its next request by one of them, also when this process is
no longer offered to new clients. So while the process drains, each connection is answered once
more, with `Connection: close`, which sends the client elsewhere; and the process waits until
nobody has used a connection for a while, for closing one that is in use would lose what is just
being sent by it. Connections that are opened late are refused: their clients do not look whether
the process is ready.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from typing import Protocol

from tandem.errors import DrainingError

PATIENCE_SECONDS = 5.0
"""A connection that was unused for so long may be closed; one that is opened so late is refused."""
_LOOK_SECONDS = 0.05


class ClientConnection(Protocol):
    """The connection of a client, as draining sees it."""

    opened_at: float
    """By the event loop's clock, as all times here."""

    def unused_seconds(self) -> float:
        """Since its last answer; 0 during one."""


class Draining:
    """The draining of one process's connections. It begins once."""

    def __init__(self) -> None:
        self.began = False
        self._patience = 0.0
        self._refusing_since = math.inf

    def begin(self, seconds: float) -> None:
        """From now on every connection is answered once more. The drain may take `seconds`."""
        self.began = True
        self._patience = min(PATIENCE_SECONDS, seconds / 2)
        self._refusing_since = asyncio.get_running_loop().time() + self._patience

    def refuses(self, connection: ClientConnection) -> bool:
        return connection.opened_at > self._refusing_since

    @staticmethod
    def error() -> DrainingError:
        """What clients are told that cannot be served any longer."""
        return DrainingError("The frontend is shutting down; try again elsewhere")

    async def taken(self, connections: Collection[ClientConnection]) -> None:
        """Until every one of `connections`, which changes meanwhile, may be closed."""
        while True:
            unused = min((each.unused_seconds() for each in connections), default=math.inf)
            if unused >= self._patience:
                return
            await asyncio.sleep(min(self._patience - unused, _LOOK_SECONDS))
