"""The routers that requests may go to: finds their addresses, and keeps a link to each of them, or
to some where they are many.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tandem.byte_budget import ByteBudget
from tandem.upstream.choice import Draw
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.names import DNS, MAX_ROUTERS, Names
from tandem.upstream.router_link import OldStreams, Receiver, RouterLink
from tandem.upstream.router_stream import RouterStream
from tandem.wire import addresses
from tandem.wire.silence import SILENCE_SECONDS
from tandem.wire.tls import PeerTls

LOOKUP_SECONDS = 5.0
"""How often names are looked up, beside whenever a stream stops taking requests."""


class Routers:
    """Keeps a stream to each router, at most to `most` of them, for as long as `run` runs.

    Of more, those are chosen at random, so that frontends spread, and as many of each entry that
    names some as of the others: entries may be releases, of models of their own. One that was
    chosen keeps its place until its stream ends.
    """

    def __init__(
        self,
        routers: Iterable[str],
        metrics: UpstreamMetrics,
        budget: ByteBudget,
        *,
        most: int = MAX_ROUTERS,
        silence_seconds: float = SILENCE_SECONDS,
        tls: PeerTls | None = None,
        resolve: addresses.Resolve = addresses.resolve,
        draw: Draw = random.randrange,
    ) -> None:
        """`routers`: each "host:port" is one connection, whatever is behind it; of "dns://host:port"
        every address of the host is. `budget`: what waits to be sent takes of it. A router that
        says nothing for `silence_seconds`, though it said that it would, is given up.
        """
        each = dict.fromkeys(routers)
        self._plain = [address for address in each if not address.startswith(DNS)]
        named = [address.removeprefix(DNS) for address in each if address.startswith(DNS)]
        self._names = Names(named, resolve) if named else None
        self._metrics = metrics
        self._budget = budget
        self._most = most
        self._silence_seconds = silence_seconds
        self._tls = tls
        self._draw = draw
        self._old = OldStreams(metrics)
        self._linked: dict[str, str] = {}
        """Address to the entry that names it."""
        self._look_up_now = asyncio.Event()

    async def run(self, receiver: Receiver) -> None:
        """Hold the streams until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                if self._names is not None:
                    await self._names.look_up()
                self._fill(receiver, group)
                self._look_up_now.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOKUP_SECONDS if self._names else None):
                        await self._look_up_now.wait()

    @property
    def _listed(self) -> Mapping[str, str]:
        """The current routers: address to the entry that names it."""
        found = {} if self._names is None else self._names.addresses()
        return {address: address for address in self._plain} | found

    def _fill(self, receiver: Receiver, group: asyncio.TaskGroup, *, leaving: str = "") -> None:
        """Link as many routers as there are places. `leaving`: its link is about to end."""
        spare = {each: entry for each, entry in self._listed.items() if each not in self._linked}
        linked = Counter(entry for each, entry in self._linked.items() if each != leaving)
        while spare and linked.total() < self._most:
            fewest = min(linked[entry] for entry in spare.values())
            best = [each for each, entry in spare.items() if linked[entry] == fewest]
            address = best[self._draw(len(best))]
            self._linked[address] = entry = spare.pop(address)
            linked[entry] += 1
            group.create_task(self._link(address, receiver, group))

    async def _link(self, address: str, receiver: Receiver, group: asyncio.TaskGroup) -> None:
        link = RouterLink(
            address,
            self._metrics,
            self._budget,
            self._old,
            silence_seconds=self._silence_seconds,
            tls=self._tls,
        )
        await link.run(receiver, group, self._stays)
        self._fill(receiver, group, leaving=address)  # with another than this one
        del self._linked[address]

    def _stays(self, address: str, stream: RouterStream) -> bool:
        """Whether a router keeps its place: it is listed, and was reached or has no substitute."""
        self._look_up_now.set()
        listed = self._listed
        return address in listed and (stream.opened or len(listed) <= self._most)
