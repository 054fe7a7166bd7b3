"""The connections to all listed workers."""

from __future__ import annotations

import asyncio

from router.connection import WorkerConnection
from router.discovery import Discovery, Listed
from router.relay import Relay
from tandem.v1 import router_pb2


class Workers:
    """Keeps one connection for each worker that discovery lists."""

    def __init__(
        self, discovery: Discovery, relay: Relay, *, silence_seconds: float, max_backlog_bytes: int
    ) -> None:
        self._discovery = discovery
        self._relay = relay
        self._silence = silence_seconds
        self._max_backlog = max_backlog_bytes
        self._connections: dict[Listed, WorkerConnection] = {}
        self._tasks: dict[Listed, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            async for listing in self._discovery.listings():
                await self._drop(self._tasks.keys() - set(listing))
                for listed in listing:
                    if listed not in self._tasks:
                        self._tasks[listed] = group.create_task(self._connect(listed).run())

    async def _drop(self, gone: set[Listed]) -> None:
        """Their streams are closed when this returns, so an address may be listed anew."""
        tasks = [self._tasks.pop(listed) for listed in gone]
        for task in tasks:
            task.cancel()
        for listed in gone:
            del self._connections[listed]
        if tasks:
            await asyncio.wait(tasks)

    def _connect(self, listed: Listed) -> WorkerConnection:
        connection = WorkerConnection(
            listed,
            self._relay,
            silence_seconds=self._silence,
            max_backlog_bytes=self._max_backlog,
        )
        self._connections[listed] = connection
        return connection

    def statuses(self) -> list[router_pb2.WorkerStatus]:
        """Every listed worker, connected or not, and why no pair uses it."""
        return [self._status(connection) for connection in self._connections.values()]

    def _status(self, connection: WorkerConnection) -> router_pb2.WorkerStatus:
        fleet = self._relay.core.state.fleet
        worker = fleet.workers.get(connection.listed.address)
        return router_pb2.WorkerStatus(
            address=connection.listed.address,
            description=connection.description,
            connected=connection.connected,
            refused=connection.trouble if worker is None else fleet.refusal(worker),
        )
