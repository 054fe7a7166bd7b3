"""Who asks: the holders of clients' keys, what is left of their limits in this frontend, and what
is counted of them. Without keys there are none, and nobody asks this module anything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from tandem.errors import (
    InvalidRequestError,
    NotAllowedError,
    QueueFullError,
    RateLimitError,
    TandemError,
)
from tandem.keys.file import KeyFile
from tandem.keys.grant import MOST_PRIORITY, PLAIN_PREFIX, Grant
from tandem.keys.minute import Minute
from tandem.keys.ring import KeyRing, digest_of

LOOK_SECONDS = 1.0
"""Between looks at the key file."""
OTHER = "_other"
"""The series of the keys that have none of their own; no key can be called so."""
Headers = tuple[tuple[bytes, bytes], ...]


class KeyMetrics:
    """What is counted by key, for no more than so many keys; the rest are counted together."""

    def __init__(self, registry: CollectorRegistry, *, most: int) -> None:
        self._most = most
        self._named: set[str] = set()
        self.requests = Counter(
            "tandem_frontend_key_requests",
            "Requests with a key that ended, by how: success, failed, or refused by its limits.",
            ["key", "outcome"],
            registry=registry,
        )
        self.tokens = Counter(
            "tandem_frontend_key_tokens",
            "Tokens of requests with a key: of their prompts, or generated for them.",
            ["key", "kind"],
            registry=registry,
        )
        self.open = Gauge(
            "tandem_frontend_key_open_requests",
            "Requests with a key that are open now.",
            ["key"],
            registry=registry,
        )
        self._good = Gauge("tandem_frontend_keys", "Keys that are good now.", registry=registry)
        self._stale = Gauge(
            "tandem_frontend_key_file_stale",
            "1 while the key file cannot be used: the keys are those of before.",
            registry=registry,
        )
        self.failures = Counter(
            "tandem_frontend_key_file_failures",
            "Times that the key file had changed and could not be used.",
            registry=registry,
        )

    def watch(self, *, good: Callable[[], float], stale: Callable[[], float]) -> None:
        """Gauges that are read when they are asked for."""
        self._good.set_function(good)
        self._stale.set_function(stale)

    def series(self, key: str) -> KeySeries:
        """A key's own as long as there are any, and from then on."""
        if key not in self._named and len(self._named) >= self._most:
            key = OTHER
        else:
            self._named.add(key)
        return KeySeries(self, key)


class KeySeries:
    """The series of one key."""

    def __init__(self, metrics: KeyMetrics, key: str) -> None:
        self.served = metrics.requests.labels(key, "success")
        self.failed = metrics.requests.labels(key, "failed")
        self.refused = metrics.requests.labels(key, "refused")
        self.prompt_tokens = metrics.tokens.labels(key, "prompt")
        self.completion_tokens = metrics.tokens.labels(key, "completion")
        self.open = metrics.open.labels(key)


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
        """A request that entered is over."""
        self.open -= 1
        self.series.open.dec()
        (self.series.served if error is None else self.series.failed).inc()

    def spend(self, now: float, *, prompt: int = 0, completion: int = 0) -> None:
        """Count tokens: a prompt's when it is submitted, an answer's when it is over."""
        self._tokens.add(now, prompt + completion)
        self.series.prompt_tokens.inc(prompt)
        self.series.completion_tokens.inc(completion)

    def check(self, *, n: int, priority: int, processors: Iterable[str]) -> None:
        """Raises RequestError where a request asks for what the key is not allowed."""
        grant = self.grant
        if grant.max_n is not None and n > grant.max_n:
            raise InvalidRequestError(f"`n` must not exceed {grant.max_n} with this key", param="n")
        if priority > grant.max_priority:
            raise NotAllowedError(
                f"This key is allowed no `priority` above {grant.max_priority}", param="priority"
            )
        allowed = grant.logits_processors
        for position, name in enumerate(processors):
            if allowed is not None and name not in allowed:
                raise NotAllowedError(
                    f"This key is not allowed the logits processor `{name}`",
                    param=f"logits_processors[{position}].name",
                )

    def check_model(self, model: str) -> None:
        """Raises NotAllowedError."""
        if self.grant.models is not None and model not in self.grant.models:
            raise NotAllowedError(f"This key is not allowed the model `{model}`", param="model")

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
        """This frontend's, rounded up: each lets at least one through."""
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
        self._plain = {
            f"{PLAIN_PREFIX}{number}": digest_of(key.encode())
            for number, key in enumerate(plain, 1)
        }
        self._tenants: dict[str, Tenant] = {}
        self._ring: KeyRing[Tenant] = KeyRing(())
        self.take()
        metrics.watch(good=lambda: len(self._tenants), stale=lambda: bool(file and file.stale))

    def find(self, key: bytes) -> Tenant | None:
        """The holder of a key; None: it is not good."""
        return self._ring.find(key)

    def enter(self, tenant: Tenant, now: float) -> None:
        """A request comes; it must leave. Raises RateLimitError, and QueueFullError where one key
        would take more of the frontend than it leaves to others.
        """
        try:
            if tenant.open >= self._max_open - self._open:
                raise QueueFullError("Too many open requests with this key; try again later")
            tenant.enter(now)
        except TandemError:
            tenant.series.refused.inc()
            raise
        self._open += 1

    def leave(self, tenant: Tenant, error: TandemError | None) -> None:
        """A request that entered is over."""
        self._open -= 1
        tenant.leave(error)

    async def follow(self) -> None:
        """Take the keys of the file as it changes, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(LOOK_SECONDS)
            failures = self._file.failures
            if await asyncio.to_thread(self._file.look):
                self.take()
            self._metrics.failures.inc(self._file.failures - failures)

    def take(self) -> None:
        """Use the keys that the file holds now. What a key has used stays used."""
        held: list[tuple[str, Tenant]] = []
        tenants: dict[str, Tenant] = {}
        for name, digest in self._plain.items():
            grant = Grant(name=name, sha256=digest, max_priority=MOST_PRIORITY)
            salt = digest_of(b"prefix cache of " + digest.encode())
            tenants[name] = self._tenant(grant, salt)
            held.append((digest, tenants[name]))
        for grant in () if self._file is None else self._file.grants:
            tenants[grant.name] = self._tenant(grant, grant.name)
            held += ((digest, tenants[grant.name]) for digest in grant.digests)
        self._tenants, self._ring = tenants, KeyRing(held)

    def _tenant(self, grant: Grant, salt: str) -> Tenant:
        known = self._tenants.get(grant.name)
        if known is not None:
            known.grant = grant
            return known
        series = self._metrics.series(grant.name)
        return Tenant(grant, salt=salt, frontends=self._frontends, series=series)
