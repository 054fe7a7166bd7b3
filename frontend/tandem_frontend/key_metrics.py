"""What is counted by key, in a bounded number of series."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from prometheus_client import CollectorRegistry, Counter, Gauge

from tandem.keys import OTHERS


class KeyMetrics:
    """What is counted by key, for no more than so many keys; the rest are counted together."""

    def __init__(self, registry: CollectorRegistry, *, most: int) -> None:
        self._most = most
        self._series: dict[str, KeySeries] = {}
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
            "1 while the keys in use are not those of the key file: the file cannot be used, or has"
            " only just changed.",
            registry=registry,
        )
        self.failures = Counter(
            "tandem_frontend_key_file_failures",
            "Times that the key file had changed and could not be used.",
            registry=registry,
        )

    def watch(self, *, good: Callable[[], float], stale: Callable[[], float]) -> None:
        self._good.set_function(good)
        self._stale.set_function(stale)

    def series(self, key: str) -> KeySeries:
        """A key's own as long as there are any, and from then on."""
        if key not in self._series:
            if len(self._series) >= self._most:
                return self._others
            self._series[key] = KeySeries(self, key)
        return self._series[key]

    @cached_property
    def _others(self) -> KeySeries:
        return KeySeries(self, OTHERS)


class KeySeries:
    def __init__(self, metrics: KeyMetrics, key: str) -> None:
        self.served = metrics.requests.labels(key, "success")
        self.failed = metrics.requests.labels(key, "failed")
        self.refused = metrics.requests.labels(key, "refused")
        self.prompt_tokens = metrics.tokens.labels(key, "prompt")
        self.completion_tokens = metrics.tokens.labels(key, "completion")
        self.open = metrics.open.labels(key)
