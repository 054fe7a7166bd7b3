"""Which of the decode workers this router serves, where several routers divide them.

Each decode worker ranks all routers by a hash of both addresses, and is served by the first few
(rendezvous hashing). So the routers agree without a word, and one that comes or goes moves its own
share alone. Routers that know of different ones for a while serve a worker by more of them, or by
fewer; its slots are counted by the worker, whoever serves it.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from tandem.wire import faces
from tandem_router.core.values import Phase

log = logging.getLogger(__name__)


def servers(worker: str, routers: Iterable[str], number: int) -> list[str]:
    """The so many routers that serve a decode worker, the first in its order first."""
    return heapq.nlargest(number, routers, key=lambda router: _weight(router, worker))


def _weight(router: str, worker: str) -> tuple[bytes, str]:
    return blake2b(f"{router} {worker}".encode(), digest_size=8).digest(), router


class Share:
    """What is this router's of each list: every prefill worker, and of the decode workers those
    that have it among their routers. Both phases of an aggregated worker are, where decode is.
    """

    def __init__(self, own: str = "", *, decode_routers: int = 0, decode_routers_from: int = 0):
        """`own`: this router's address, as other routers find it. It counts as listed always.

        `decode_routers`: routers of each decode worker; 0: all. All serve all as well while fewer
        than `decode_routers_from` decode workers are listed.
        """
        self._own = own
        self._decode_routers = decode_routers
        self._from = decode_routers_from
        self.routers: frozenset[str] = frozenset()
        """Routers that divide the decode workers, this one among them; none before the first list,
        and where nothing is divided.
        """
        self._mine: dict[str, bool] = {}
        """Decode workers, and whether this router serves them; true of these routers alone."""

    def of(self, workers: Mapping[str, Phase], routers: frozenset[str]) -> Mapping[str, Phase]:
        """The listed workers that this router serves, where `routers` are listed."""
        if not self._decode_routers:
            return workers
        self._divide_among(routers)
        divided = {
            each: faces.address(each)
            for each, phase in workers.items()
            if phase is Phase.DECODE or faces.is_one(each)
        }
        addresses = set(divided.values())
        if len(addresses) < self._from:
            return workers
        self._mine = {each: self._serves(each) for each in addresses}
        return {
            each: phase
            for each, phase in workers.items()
            if each not in divided or self._mine[divided[each]]
        }

    def _divide_among(self, others: frozenset[str]) -> None:
        routers = others | {self._own}
        if routers != self.routers:
            self.routers, self._mine = routers, {}
            log.info("routers that divide the decode workers", extra={"count": len(routers)})

    def _serves(self, worker: str) -> bool:
        known = self._mine.get(worker)
        if known is None:
            return self._own in servers(worker, self.routers, self._decode_routers)
        return known
