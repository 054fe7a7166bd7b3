"""A worker's metrics. Nothing is observed on the token path: a scrape reads the counters, so every
series is there from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics
from tandem.engine.base import EngineFigures
from tandem.hooks.contract import Phase
from tandem.logits.forms.workshop import Workshop
from tandem.v1 import worker_pb2
from tandem.worker.classifying import Classifying
from tandem.worker.core.ledger import Taken
from tandem.worker.counters import WorkerCounters
from tandem.worker.engine_metrics import engine_metrics
from tandem.worker.form_metrics import form_metrics
from tandem.worker.hook_metrics import (
    audit_metrics,
    classifier_metrics,
    hook_metrics,
    pool_metrics,
)
from tandem.worker.hooks import WorkerHooks
from tandem.worker.leg_metrics import leg_metrics
from tandem.worker.network_metrics import network_metrics

_OF_LOAD = {
    "open_legs": "Sequences that are open here.",
    "waiting_legs": "Open sequences that wait to enter the engine's running batch.",
    "kv_tokens_used": "Tokens of KV cache in use.",
    "kv_tokens_total": "Tokens the KV cache can hold.",
    "draining": "1 while the worker takes nothing new.",
}
"""Help of the gauges that tell a field of tandem.v1.Load, by the field."""


_OF_KEYS = {
    "tandem_worker_key_seconds": "Time that the worker computed for a key, each second divided"
    " among the sequences that were computed in it, by their tokens in a step.",
    "tandem_worker_key_slot_seconds": "Time for which a key's sequences held slots of the worker.",
    "tandem_worker_key_kv_token_seconds": "Tokens of KV cache that a key's sequences held, by the"
    " seconds for which they did.",
}
"""Help of the counters by key, in the order of the figures in Taken."""


class WorkerCollector(Collector):
    """Reads one worker, from the thread that serves /metrics."""

    def __init__(
        self,
        *,
        phase: Phase,
        counters: WorkerCounters,
        hooks: WorkerHooks | None,
        classifiers: Classifying | None,
        forms: Workshop,
        load: Callable[[], worker_pb2.Load],
        figures: Callable[[], EngineFigures],
        taken: Callable[[], Taken],
    ) -> None:
        self._phase = phase
        self._counted = counters
        self._hooks = hooks
        self._classifiers = classifiers
        self._forms = forms
        self._load = load
        self._figures = figures
        self._taken = taken

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        yield from self._gauges(figures)
        yield from self._counters(figures)
        yield from self._transfers(figures)
        yield from engine_metrics(self._phase, figures)
        yield from self._keys()
        yield from self._judges()
        yield from form_metrics(self._phase, self._forms)

    def _judges(self) -> Iterator[Metric]:
        hooks, classifiers = self._hooks, self._classifiers
        yield from hook_metrics(self._phase, () if hooks is None else hooks.counted)
        yield from classifier_metrics(
            self._phase, {} if classifiers is None else classifiers.counters
        )
        if hooks is not None and hooks.pool is not None:
            yield from pool_metrics(self._phase, hooks.pool)
        logs = [each.audit for each in (hooks, classifiers) if each is not None]
        yield from audit_metrics(self._phase, [log for log in logs if log is not None])

    def _gauges(self, figures: EngineFigures) -> Iterator[Metric]:
        load = self._load()
        for name, text in _OF_LOAD.items():
            yield self._gauge(f"tandem_worker_{name}", text, getattr(load, name))
        yield self._gauge(
            "tandem_worker_kv_used_ratio",
            "Share of the KV cache in use, 0 to 1.",
            load.kv_tokens_used / load.kv_tokens_total if load.kv_tokens_total else 0.0,
        )
        yield self._gauge(
            "tandem_logits_states",
            "Sequences whose logits processors hold state.",
            figures.logits_states,
        )
        yield self._gauge(
            "tandem_worker_parked", "Prompts whose KV waits for a request to come.", figures.parked
        )
        yield self._gauge("tandem_worker_parked_bytes", "Bytes of parked KV.", figures.parked_bytes)
        if load.HasField("step_age_ms"):
            yield self._gauge(
                "tandem_worker_step_age_seconds",
                "Time since the engine's last step, while the engine has work; absent where the"
                " engine does not report steps.",
                load.step_age_ms / 1000,
            )

    def _counters(self, figures: EngineFigures) -> Iterator[Metric]:
        yield from leg_metrics(self._phase, self._counted)
        yield from network_metrics(self._phase)
        yield metrics.counter(
            "tandem_worker_tokens",
            "Tokens the engine delivered.",
            self._counted.tokens,
            phase=self._phase,
        )
        yield metrics.counter(
            "tandem_worker_engine_cpu_seconds",
            "CPU this process spent on what a GPU does in a real engine.",
            figures.cpu_seconds,
            phase=self._phase,
        )
        steps = HistogramMetricFamily(
            "tandem_worker_step_seconds",
            "Time the worker took to turn one engine step into output.",
            labels=("phase",),
        )
        steps.add_metric((self._phase,), self._counted.steps.buckets(), self._counted.steps.total)
        yield steps

    def _keys(self) -> Iterator[Metric]:
        taken = self._taken()
        yield metrics.counter(
            "tandem_worker_idle_seconds",
            "Time in which the worker computed nothing: with tandem_worker_key_seconds of all keys"
            " it is all of the time since the worker served first.",
            taken.idle,
            phase=self._phase,
        )
        for place, (name, text) in enumerate(_OF_KEYS.items()):
            family = CounterMetricFamily(name, text, labels=("phase", "key"))
            for key, figures in taken.tenants.items():
                family.add_metric((self._phase, key), figures[place])
            yield family

    def _transfers(self, figures: EngineFigures) -> Iterator[Metric]:
        seconds = HistogramMetricFamily(
            "tandem_kv_transfer_seconds",
            "Time of one hand-over of KV cache.",
            labels=("phase", "transport"),
        )
        size = CounterMetricFamily(
            "tandem_kv_transfer_bytes",
            "KV cache handed over, bytes.",
            labels=("phase", "transport"),
        )
        for transport, counted in list(self._counted.transfers.items()):
            labels = (self._phase, transport)
            buckets = counted.exemplars.beside(counted.seconds.buckets())
            seconds.add_metric(labels, buckets, counted.seconds.total)
            size.add_metric(labels, counted.bytes)
        yield seconds
        yield size
        if figures.open_handovers is not None:
            yield self._gauge(
                "tandem_kv_open_handovers",
                "Hand-overs that have begun and are not settled; each holds KV memory.",
                figures.open_handovers,
            )

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        return metrics.gauge(name, help, value, phase=self._phase)
