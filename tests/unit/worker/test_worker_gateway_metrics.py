"""A worker's load under the names of other engines."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.gateway_metrics import Dialect, GatewayCollector

BUSY = worker_pb2.Load(open_legs=12, waiting_legs=3, kv_tokens_used=96, kv_tokens_total=384)
FINGERPRINT = common_pb2.Fingerprint(model="tiny", page_size=16)


def scraped(
    dialect: Dialect,
    load: worker_pb2.Load = BUSY,
    *,
    adapters: int = 0,
    fingerprint: common_pb2.Fingerprint = FINGERPRINT,
) -> dict[str, tuple[dict[str, str], float]]:
    """What Prometheus reads: labels and value of each series."""
    registry = CollectorRegistry()
    registry.register(
        GatewayCollector(dialect, fingerprint=fingerprint, adapters=adapters, load=lambda: load)
    )
    text = generate_latest(registry).decode()
    return {
        sample.name: (dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.promise("S5-668")
@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        (
            "vllm",
            ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"],
        ),
        ("sglang", ["sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"]),
    ],
)
def test_what_waits_and_runs_and_the_share_of_kv_have_their_names(
    dialect: Dialect, names: list[str]
) -> None:
    found = scraped(dialect)
    model = {"model_name": "tiny"}
    assert [found[name] for name in names] == [(model, 3), (model, 9), (model, 0.25)]


@pytest.mark.promise("S5-668")
def test_vllm_says_the_pages_and_adapters_as_labels() -> None:
    found = scraped("vllm", adapters=2)
    cache = {"model_name": "tiny", "block_size": "16", "num_gpu_blocks": "24"}
    assert found["vllm:cache_config_info"] == (cache, 1)
    assert found["vllm:lora_requests_info"] == ({"model_name": "tiny", "max_lora": "2"}, 1)
    assert "vllm:lora_requests_info" not in scraped("vllm")
    assert len(scraped("sglang", adapters=2)) == 3


def test_before_the_engine_knows_its_size_nothing_is_divided() -> None:
    found = scraped("vllm", worker_pb2.Load(), fingerprint=common_pb2.Fingerprint())
    assert found["vllm:kv_cache_usage_perc"][1] == 0
    assert found["vllm:cache_config_info"][0]["num_gpu_blocks"] == "0"
    late = scraped("vllm", worker_pb2.Load(open_legs=1, waiting_legs=2))
    assert late["vllm:num_requests_running"][1] == 0
