"""The connections to all listed workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from tandem.v1 import router_pb2
from tandem.wire.tls import PeerTls
from tandem_router.connection import UNLISTED, WorkerConnection
from tandem_router.core.story import MAX_NAME_CHARACTERS
from tandem_router.core.values import Phase
from tandem_router.discovery import Discovery, Listed, Listing, Share, Watchkeeper
from tandem_router.relay import Relay


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerTold:
    """A listed worker, as its connection sees it."""

    address: str
    name: str
    phase: Phase
    connected: bool
    refused: str
    """Why no pair uses it; empty: one does."""
    silent_seconds: float
    """At least so long it has said nothing, in quarters of `worker_silence_seconds`."""


class Workers:
    """Keeps one connection for each worker that discovery lists and that is this router's share.
    One that no longer is ends as its connection sees fit: see WorkerConnection.
    """

    def __init__(
        self,
        discovery: Discovery,
        relay: Relay,
        *,
        share: Share | None = None,
        tls: PeerTls | None = None,
        silence_seconds: float,
    ) -> None:
        self._discovery = discovery
        self._relay = relay
        self.share = share or Share()
        self._tls = tls
        self._silence = silence_seconds
        self.known = False
        """Discovery has given a list, and each worker on it is connected or was not reached: from
        then on `no_pair` is the truth.
        """
        self._discovered: Counter[Phase] = Counter()
        self._listed: Mapping[str, Phase] = {}
        """Workers that this router serves, by address."""
        self._connections: dict[str, WorkerConnection] = {}

    @property
    def keeper(self) -> Watchkeeper:
        return self._discovery.keeper

    def discovered(self) -> dict[Phase, int]:
        """How many workers are listed."""
        return {phase: self._discovered[phase] for phase in Phase}

    def served(self) -> dict[Phase, int]:
        """How many of them this router serves: all of prefill, and its share of decode."""
        count = Counter(self._listed.values())
        return {phase: count[phase] for phase in Phase}

    async def run(self) -> None:
        """Run until the task is cancelled."""
        async with asyncio.TaskGroup() as group, aclosing(self._discovery.listings()) as listings:
            first = True
            async for listing in listings:
                self._take(listing, group)
                if first:
                    group.create_task(self._get_to_know(list(self._connections.values())))
                    first = False

    def _take(self, listing: Listing, group: asyncio.TaskGroup) -> None:
        discovered = listing.phases()
        self._discovered = Counter(discovered.values())
        listed = self._listed = self.share.of(discovered, listing.routers)
        self._relay.lists_workers = bool(discovered)
        for address, connection in self._connections.items():
            connection.set_listed(listed.get(address) is connection.listed.phase)
        for address, phase in listed.items():
            if address not in self._connections:
                group.create_task(self._keep(self._connect(Listed(address, phase)), group))

    async def _get_to_know(self, connections: list[WorkerConnection]) -> None:
        for each in connections:
            await each.tried.wait()
        self.known = True

    async def _keep(self, connection: WorkerConnection, group: asyncio.TaskGroup) -> None:
        """Stay with an address while it is listed, under whichever phase."""
        address = connection.listed.address
        while True:
            await group.create_task(connection.run())  # so that a frame does not wake us too
            phase = self._listed.get(address)
            if phase is None:
                break
            connection = self._connect(Listed(address, phase))
        del self._connections[address]

    def _connect(self, listed: Listed) -> WorkerConnection:
        connection = WorkerConnection(
            listed, self._relay, tls=self._tls, silence_seconds=self._silence
        )
        self._connections[listed.address] = connection
        return connection

    def listed(self) -> list[Listed]:
        """Every worker that this router serves, connected or not."""
        return [each.listed for each in self._connections.values()]

    def told(self) -> list[WorkerTold]:
        """Every worker that this router serves, for people. Costs a pass over all of them."""
        refusals = self._relay.core.refusals()
        return [self._told(each, refusals) for each in self._connections.values()]

    def _told(self, connection: WorkerConnection, refusals: dict[str, str]) -> WorkerTold:
        address = connection.listed.address
        refused = refusals.get(address, "") if connection.connected else connection.trouble
        description = connection.description
        return WorkerTold(
            address=address,
            name="" if description is None else description.name[:MAX_NAME_CHARACTERS],
            phase=connection.listed.phase,
            connected=connection.connected,
            refused=refused if connection.is_listed else UNLISTED,
            silent_seconds=connection.silent_seconds,
        )

    def statuses(self) -> list[router_pb2.WorkerStatus]:
        """Every worker that this router serves, connected or not, and why no pair uses it."""
        return [self._status(connection) for connection in self._connections.values()]

    def _status(self, connection: WorkerConnection) -> router_pb2.WorkerStatus:
        address = connection.listed.address
        up = connection.connected
        refused = self._relay.core.refusal(address) if up else connection.trouble
        return router_pb2.WorkerStatus(
            address=address,
            description=connection.description,
            connected=up,
            refused=refused if connection.is_listed else UNLISTED,
        )
