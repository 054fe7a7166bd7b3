"""What a worker tells from its first second on, also while its engine loads. Nothing here asks the
event loop, so that a load that keeps the loop busy is told from a process that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics
from tandem.hooks.contract import Phase


class StartCollector(Collector):
    """Tells how one phase of a worker starts."""

    def __init__(
        self,
        phase: Phase,
        *,
        model: str,
        started: Callable[[], bool],
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """`ready`: None of a node that does not lead, which is no worker of its own."""
        self._phase = phase
        self._model = model
        self._started = started
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        yield metrics.gauge(
            "tandem_worker_starting",
            "1 until the engine has loaded its model and was warmed up.",
            not self._started(),
            phase=self._phase,
        )
        if self._ready is None:
            return
        yield metrics.gauge(
            "tandem_worker_ready",
            "1 while the worker takes work.",
            self._ready(),
            phase=self._phase,
        )
        yield metrics.gauge(
            "tandem_worker_served_model_info",
            "Always 1; names the model that the worker serves.",
            1,
            phase=self._phase,
            model=self._model,
        )
