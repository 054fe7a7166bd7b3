"""What waits to be worked on one after the other, and whose turn it is: one of each key's in turn,
of a key's the first that came. So whoever asks for much that is dear waits for it himself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    tenant: str
    """The client's key; all clients without a key count as one."""


W = TypeVar("W", bound=Waiting)


class Line(Generic[W]):
    """At most `most` wait. When it is full, a key that has few waiting takes the place of one that
    has more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[str, list[W]] = OrderedDict()
        """The next key first. None is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def __contains__(self, job: W) -> bool:
        return job in self._keys.get(job.tenant, ())

    def has_room(self, tenant: str) -> bool:
        """Whether this key may add one, if another's has to go for it."""
        longest = max(map(len, self._keys.values()), default=0)
        return len(self) < self._most or self._count(tenant) + 1 < longest

    def add(self, job: W) -> W | None:
        """Add a job, making room. Returns the job that had to go: the last of the longest."""
        gone = None
        if len(self) >= self._most:
            gone = max(self._keys.values(), key=len)[-1]
            self.remove(gone)
        self._keys.setdefault(job.tenant, []).append(job)
        return gone

    def favour(self, job: W, tenant: str) -> None:
        """Another key waits for it too: it waits where its turn comes sooner."""
        if job in self and self._count(tenant) + 1 < self._count(job.tenant):
            self.remove(job)
            job.tenant = tenant
            self.add(job)

    def next(self) -> W:
        """The one whose turn it is, which waits no longer. Something must be waiting."""
        tenant, jobs = self._keys.popitem(last=False)
        job = jobs.pop(0)
        if jobs:
            self._keys[tenant] = jobs
        return job

    def remove(self, job: W) -> None:
        """Take one out that nobody wants any more. It must be waiting."""
        jobs = self._keys[job.tenant]
        jobs.remove(job)
        if not jobs:
            del self._keys[job.tenant]

    def _count(self, tenant: str) -> int:
        return len(self._keys.get(tenant, ()))
