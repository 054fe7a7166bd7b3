"""A worker's load under the names that vLLM and SGLang give it.

Schedulers of inference gateways, scalers and dashboards that were written for these engines read
them: the Gateway API Inference Extension's model server protocol asks for requests that wait, that
run, and the share of the KV cache in use. vLLM's names are those of 0.33, SGLang's of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.v1 import common_pb2, worker_pb2

Dialect = Literal["vllm", "sglang"]
_NAMES: Mapping[str, tuple[str, str, str]] = {
    "vllm": ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
    "sglang": ("sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"),
}
"""The names of waiting and running requests and of the KV cache's share, by dialect."""


class GatewayCollector(Collector):
    """Reads one worker, from the thread that serves /metrics."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        fingerprint: common_pb2.Fingerprint,
        adapters: int,
        load: Callable[[], worker_pb2.Load],
    ) -> None:
        """`adapters`: LoRA adapters that the worker has."""
        self._dialect = dialect
        self._model = fingerprint.model
        self._page_size = fingerprint.page_size
        self._adapters = adapters
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        waiting, running, used = _NAMES[self._dialect]
        total = load.kv_tokens_total
        yield self._gauge(waiting, "Requests that wait for the engine.", load.waiting_legs)
        yield self._gauge(
            running, "Requests that the engine runs.", max(0, load.open_legs - load.waiting_legs)
        )
        yield self._gauge(
            used,
            "Share of the KV cache in use, 0 to 1.",
            load.kv_tokens_used / total if total else 0.0,
        )
        if self._dialect == "vllm":
            yield from self._facts(total)

    def _facts(self, total: int) -> Iterator[Metric]:
        """What vLLM says as labels of a gauge that is 1."""
        pages = total // self._page_size if self._page_size else 0
        yield self._fact(
            "vllm:cache_config_info", block_size=str(self._page_size), num_gpu_blocks=str(pages)
        )
        if self._adapters:
            yield self._fact("vllm:lora_requests_info", max_lora=str(self._adapters))

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=("model_name",))
        gauge.add_metric((self._model,), value)
        return gauge

    def _fact(self, name: str, **labels: str) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(
            name, "1; the labels say what there is.", labels=("model_name", *labels)
        )
        gauge.add_metric((self._model, *labels.values()), 1)
        return gauge
