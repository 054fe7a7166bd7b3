"""Who asks: the holders of clients' keys, and what is left of their limits in this frontend.
Without keys there are none, and nobody asks this module anything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence

from tandem.errors import QueueFullError, RateLimitError, TandemError
from tandem.keys.file import KeyFile
from tandem.keys.grant import MOST_PRIORITY, PLAIN_PREFIX, Grant
from tandem.keys.minute import Minute
from tandem.keys.ring import KeyRing, digest_of
from tandem.watched_file import LOOK_SECONDS
from tandem_frontend.key_metrics import KeyMetrics, KeySeries

Headers = tuple[tuple[bytes, bytes], ...]


class Tenant:
    """The holder of a key. What is counted stays while the key's limits are changed."""

    def __init__(self, grant: Grant, *, salt: str, frontends: int, series: KeySeries) -> None:
        """`salt`: of its prefix cache. `frontends`: each has as large a share of the limits."""
        self.grant = grant
        self.name = grant.name
        self.salt = salt
        self.series = series
        self.open = 0
        self._frontends = frontends
        self._requests, self._tokens = Minute(), Minute()

    def enter(self, now: float) -> None:
        """Count a request that comes. Raises RateLimitError where a limit is reached."""
        most = self.grant.open_requests
        if most is not None and self.open >= self._share(most):
            raise RateLimitError(f"This key's limit of {most} open requests is reached")
        for kind, minute, limit in self._limits():
            if seconds := minute.seconds_until_below(self._share(limit), now):
                error = RateLimitError(f"This key's limit of {limit} {kind} a minute is reached")
                error.retry_after_seconds = seconds
                raise error
        self._requests.add(now, 1)
        self.open += 1
        self.series.open.inc()

    def leave(self, error: TandemError | None) -> None:
        self.open -= 1
        self.series.open.dec()
        (self.series.served if error is None else self.series.failed).inc()

    def spend(self, now: float, *, prompt: int = 0, completion: int = 0) -> None:
        """Count tokens: a prompt's when it is submitted, an answer's when it is over."""
        self._tokens.add(now, prompt + completion)
        self.series.prompt_tokens.inc(prompt)
        self.series.completion_tokens.inc(completion)

    def headers(self, now: float) -> Headers:
        """What is left of the limits by the minute, as OpenAI's API tells it."""
        found: list[tuple[bytes, bytes]] = []
        for kind, minute, whole in self._limits():
            name, limit = kind.encode(), self._share(whole)
            left = max(0, limit - minute.total(now))
            reset = math.ceil(minute.seconds_until_below(1, now))
            found += (
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % left),
                (b"x-ratelimit-reset-" + name, b"%ds" % reset),
            )
        return tuple(found)

    def _limits(self) -> Iterator[tuple[str, Minute, int]]:
        if limit := self.grant.requests_per_minute:
            yield "requests", self._requests, limit
        if limit := self.grant.tokens_per_minute:
            yield "tokens", self._tokens, limit

    def _share(self, limit: int) -> int:
        """This frontend's share of a limit, rounded up: each lets at least one through."""
        return -(-limit // self._frontends)


class Tenants:
    """The holders of all keys that are good now."""

    def __init__(
        self,
        plain: Sequence[str],
        file: KeyFile | None,
        metrics: KeyMetrics,
        *,
        frontends: int = 1,
        max_open: int,
    ) -> None:
        """`plain`: keys without names or limits. `max_open`: requests at once, with all keys."""
        self.asked = bool(plain) or file is not None
        """Whether a key is needed."""
        self._file = file
        self._metrics = metrics
        self._frontends = frontends
        self._max_open = max_open
        self._open = 0
        self._plain = tuple(
            Grant(
                name=f"{PLAIN_PREFIX}{number}",
                sha256=digest_of(key.encode()),
                max_priority=MOST_PRIORITY,
            )
            for number, key in enumerate(plain, 1)
        )
        self._tenants: dict[str, Tenant] = {}
        self._ring = KeyRing(())
        self._take(self._new_ring())
        metrics.watch(good=lambda: len(self._tenants), stale=lambda: bool(file and file.stale))

    def find(self, key: bytes) -> Tenant | None:
        """The holder of a key; None: it is not good."""
        return self._tenants.get(self._ring.find(key))

    def enter(self, tenant: Tenant, now: float) -> None:
        """A request comes; it must leave. Raises RateLimitError, and QueueFullError where one of
        several keys would take more of the frontend than it leaves to others.
        """
        try:
            if len(self._tenants) > 1 and tenant.open >= self._max_open - self._open:
                raise QueueFullError("Too many open requests with this key; try again later")
            tenant.enter(now)
        except TandemError:
            tenant.series.refused.inc()
            raise
        self._open += 1

    def leave(self, tenant: Tenant, error: TandemError | None) -> None:
        self._open -= 1
        tenant.leave(error)

    async def follow(self) -> None:
        while self._file is not None:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take the keys of the file where they have changed."""
        file = self._file
        if file is None:
            return
        failures = file.failures
        if await asyncio.to_thread(file.look):
            self._take(await asyncio.to_thread(self._new_ring))
        self._metrics.failures.inc(file.failures - failures)

    def _grants(self) -> tuple[Grant, ...]:
        return self._plain if self._file is None else (*self._plain, *self._file.content)

    def _new_ring(self) -> KeyRing:
        """Made of the keys that the file holds now; thousands take too long for the loop."""
        return KeyRing((digest, grant.name) for grant in self._grants() for digest in grant.digests)

    def _take(self, ring: KeyRing) -> None:
        """Use the keys that the file holds now. What a key has used stays used."""
        self._tenants = {grant.name: self._tenant(grant) for grant in self._grants()}
        self._ring = ring

    def _tenant(self, grant: Grant) -> Tenant:
        known = self._tenants.get(grant.name)
        if known is not None:
            known.grant = grant
            return known
        return Tenant(
            grant,
            salt=_salt(grant),
            frontends=self._frontends,
            series=self._metrics.series(grant.name),
        )


def _salt(grant: Grant) -> str:
    """The same in every frontend. A plain key's name may be another client's tomorrow."""
    if grant.name.startswith(PLAIN_PREFIX):
        return digest_of(f"prefix cache of {grant.sha256}".encode())
    return grant.name
