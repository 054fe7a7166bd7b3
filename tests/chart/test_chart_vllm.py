"""Workers of vLLM as the chart makes them: image, accelerators, ports and what is told them."""

from __future__ import annotations

from typing import Any

import pods
import pytest
from one_case import one_case
from pods import Pod, by_name
from refusals import GPU, VLLM

from tandem_vllm import options as vllm_options

SET = "vllm"
WORKERS = ("prefill", "decode", "worker")
HAND_OVER = {"bootstrap": 7110, "side-channel": 7111}
"""The ports of prefill beside those of every worker, by their names."""


def options(pod: Pod) -> vllm_options.Options:
    """What the engine makes of its options. Raises ConfigError for one of another engine."""
    return vllm_options.parse(pod.settings["engine_options"])


@pytest.mark.promise("S5-850")
@one_case("component", WORKERS)
def test_a_worker_of_vllm_has_its_own_image_one_accelerator_and_its_own_options(
    component: str,
) -> None:
    pod = pods.of_set(SET)[component]
    digest = "sha256:" + "0123456789abcdef" * 4
    assert pod.main["image"] == f"ghcr.io/tandem-serving/tandem-vllm@{digest}"
    assert pod.settings["engine"] == "vllm"
    assert pod.main["resources"]["limits"]["nvidia.com/gpu"] == 1
    made = options(pod)
    assert (made.gpu_memory_utilization, made.page_size) == (0.9, 16)
    assert made.load_seconds == (900 if component == "prefill" else 1800)
    assert made.max_batched_tokens == (8192 if component == "prefill" else 0)
    assert made.decode_prefix_cache is (component == "decode")


@pytest.mark.promise("S5-850", "S5-852", "S5-857")
def test_ranks_and_adapters_are_told_to_both_phases() -> None:
    ranked = {**VLLM, "loraAdapters": [{"name": "sql", "path": "/adapters/sql"}]}
    found = pods.of_values({**ranked, "engine": {"type": "vllm", "tensorParallel": 2}})
    for phase in ("prefill", "decode"):
        assert found[phase].main["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert options(found[phase]).tensor_parallel == 2
        assert found[phase].settings["lora_adapters"] == {"sql": "/adapters/sql"}


@pytest.mark.promise("S5-850")
def test_a_trial_without_gpus_asks_for_none() -> None:
    found = pods.of_values({**GPU, "engine": {"type": "vllm", "device": "cpu"}})
    for phase in ("prefill", "decode"):
        options(found[phase])
        assert "limits" not in found[phase].main["resources"]
        assert found[phase].main["image"] == "ghcr.io/tandem-serving/tandem-vllm:0.1.0"


@pytest.mark.promise("S5-850", "S6-161")
@one_case("component", WORKERS)
def test_the_ports_of_vllms_hand_over_are_open_to_decode_alone(component: str) -> None:
    """Its side channel tells whoever asks how memory is read, without a certificate."""
    pod = pods.of_set(SET)[component]
    ports = {each["name"]: each["containerPort"] for each in pod.main["ports"]}
    own = {name: port for name, port in ports.items() if name not in ("grpc", "metrics")}
    assert own == (HAND_OVER if component == "prefill" else {})
    made = options(pod)
    assert (made.kv_port, made.side_channel_port) == tuple(own.values() or (0, 0))
    policy = by_name(SET, "NetworkPolicy")[f"tandem-{component}"]["spec"]
    everywhere = [rule for rule in policy["ingress"] if "ports" not in rule]
    named = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())}
    assert not named & {*HAND_OVER, *HAND_OVER.values()}
    assert [_peers(rule) for rule in everywhere] == {
        "prefill": [["decode"]],
        "decode": [["prefill"]],
        "worker": [],
    }[component]


def _peers(rule: dict[str, Any]) -> list[str]:
    """The components that a rule lets in. Raises KeyError for a rule that lets in others."""
    return [
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in rule["from"]
    ]


@pytest.mark.promise("S5-850")
@one_case("component", WORKERS)
def test_nixl_of_vllm_is_kept_from_tcp_where_rdma_is_required(component: str) -> None:
    variables = {
        each["name"]: each.get("value") for each in pods.of_set(SET)[component].main["env"]
    }
    assert variables["UCX_TLS"] == "^tcp"
    assert variables["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert not [name for name in variables if name.startswith(("SGLANG", "FI_", "MC_"))]


@pytest.mark.promise("S5-850")
def test_workers_of_two_engines_never_pair_though_all_else_is_equal() -> None:
    """Releases on either engine may stand behind one frontend, and their workers be moved."""
    revisions = {
        pods.of_values(values)[phase].settings["deployment_revision"]
        for values in (GPU, VLLM)
        for phase in ("prefill", "decode")
    }
    assert len(revisions) == 2


@pytest.mark.promise("S5-850")
def test_the_image_of_one_engine_replaces_no_pod_of_the_other() -> None:
    other = {"tag": "other"}
    for values, name in ((GPU, "vllmImage"), (VLLM, "image")):
        changed = {**values, "engine": {**values.get("engine", {}), name: other}}
        for phase in ("prefill", "decode"):
            before, after = (pods.of_values(each)[phase] for each in (values, changed))
            assert before.main["image"] == after.main["image"]
            assert before.settings == after.settings
