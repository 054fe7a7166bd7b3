"""What is counted by model, in a bounded number of series."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

OTHER = "_other"
"""The series of models that have none of their own."""
MOST_SERIES = 100
"""Models with requests of their own, over the life of the process."""


class ModelMetrics:
    """What is counted by model; of many that come and go, the last are counted together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._info = Gauge(
            "tandem_frontend_served_model_info",
            "Always 1: a model whose files are loaded.",
            ["model"],
            registry=registry,
        )
        self._ready = Gauge(
            "tandem_frontend_model_ready",
            "1 while a request for the model would be served.",
            ["model"],
            registry=registry,
        )
        self._requests = Counter(
            "tandem_frontend_model_requests",
            "Requests that went to a router and ended, by the model they went to, whatever they"
            " called it; and by how: success, or failed.",
            ["model", "outcome"],
            registry=registry,
        )
        self._counted: set[str] = set()
        self._ended: dict[tuple[str, bool], Counter] = {}
        """By series, and whether they failed."""

    def loaded(self, model: str, *, ready: Callable[[], float]) -> None:
        """A model is there. `ready` is read when it is asked for."""
        self._info.labels(model).set(1)
        self._ready.labels(model).set_function(ready)
        for failed in (False, True):
            self._counter(self._series(model), failed)

    def unloaded(self, model: str) -> None:
        """Take a model out of the gauges; its counters stay."""
        self._info.remove(model)
        self._ready.remove(model)

    def count(self, model: str, *, failed: bool) -> None:
        """Count a request for a model that is or was there; the request is over."""
        self._counter(self._series(model), failed).inc()

    def _counter(self, series: str, failed: bool) -> Counter:
        counter = self._ended.get((series, failed))
        if counter is None:
            counter = self._requests.labels(series, "failed" if failed else "success")
            self._ended[series, failed] = counter
        return counter

    def _series(self, model: str) -> str:
        if model not in self._counted and len(self._counted) < MOST_SERIES:
            self._counted.add(model)
        return model if model in self._counted else OTHER


class NamesMetrics:
    """Metrics of the file of model names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stale = Gauge(
            "tandem_frontend_model_names_file_stale",
            "1 while the names of models in use are not those of their file: the file cannot be"
            " used, or has only just changed.",
            registry=registry,
        )
        self.failures = Counter(
            "tandem_frontend_model_names_file_failures",
            "Times that the file of names of models had changed and could not be used.",
            registry=registry,
        )

    def watch(self, *, stale: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        self._stale.set_function(stale)
