"""The examples of docs/recipes: Tandem and SGLang take their arguments, and the pages say of their
memory what `tandem plan-fit` says.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from typing import Any

import chart_renders
import pods
import pytest
import sglang_arguments
from chart_renders import EXAMPLES, ROOT
from one_case import one_case
from test_chart_settings import settings

from tandem.cli import main
from tandem.engine.base import Nodes, Role
from tandem_sglang import arguments, kept, options
from tandem_sglang.ports import Ports
from tandem_vllm import options as vllm_options

CONFIGS = ROOT / "tests" / "model_configs"
PAGES = ROOT / "docs" / "recipes"
MARK = "**Rendered and argument-checked; not run on GPUs.**"
_PLAN = re.compile(r"```\n\$ tandem plan-fit (.*)\n((?:.+\n)+)```")
KV_BYTES = 147_456
"""Of a token of Qwen3-8B."""
WORKER_GIB, ROOM_GIB = 24, 8
"""What the chart requests for a worker of one GPU, and what the pages leave beside it."""
PHASES = (Role.PREFILL, Role.DECODE)
OF_VLLM = tuple(name for name in EXAMPLES if name.endswith("-vllm"))
OF_SGLANG = tuple(name for name in EXAMPLES if name not in OF_VLLM)


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def model(name: str) -> str:
    """The folder of the model's configuration."""
    return str(chart_renders.values(name)["model"]["uri"]).rpartition("/")[2]


def plan(name: str) -> str:
    """What `tandem plan-fit` is told of the example's workers, beside model and GPU."""
    values = chart_renders.values(name)
    engine, prefill = values.get("engine", {}), values["prefill"].get("engineOptions", {})
    options = engine.get("options", {})
    given = json.loads(options.get("server_args", "{}"))
    flags = {
        "--engine": "vllm" if name in OF_VLLM else None,
        "--tp": engine.get("tensorParallel", 1),
        "--decode-tp": engine.get("decodeTensorParallel"),
        "--dp": engine.get("dataParallel"),
        "--max-sequences": values["decode"]["config"]["max_sequences"],
        "--moe-a2a-backend": given.get("moe_a2a_backend"),
        "--ep-num-redundant-experts": given.get("ep_num_redundant_experts"),
        "--moe-dense-tp-size": given.get("moe_dense_tp_size"),
        "--enable-dp-lm-head": given.get("enable_dp_lm_head"),
        "--prefill-memory-share": prefill.get("mem_fraction_static"),
        "--max-batched-tokens": options.get("max_batched_tokens"),
    }
    return " ".join(
        flag if value is True else f"{flag} {value}" for flag, value in flags.items() if value
    )


def planned(
    capsys: pytest.CaptureFixture[str], name: str, gpu: str = "h100"
) -> dict[str, dict[str, Any]]:
    """The figures of both phases, by name."""
    main(["plan-fit", str(CONFIGS / model(name)), "--gpu", gpu, *plan(name).split(), "--json"])
    figures: dict[str, dict[str, Any]] = json.loads(capsys.readouterr().out)
    return figures


def made(name: str, role: Role) -> dict[str, Any]:
    """What a worker of the rendered chart gives to SGLang."""
    loaded = settings(name, role.value)
    return arguments.server_args(
        options.parse(loaded.engine_options),
        role=role,
        model_path=CONFIGS / model(name),
        max_sequences=loaded.max_sequences,
        host="10.0.0.1",
        device="cuda",
        ports=Ports(bootstrap=7110),
        processors=True,
        nodes=Nodes(count=loaded.nodes, rank=0, leader=loaded.leader),
    )


def test_each_example_has_a_page_that_says_what_was_checked() -> None:
    assert (len(OF_SGLANG), len(OF_VLLM)) == (8, 2)
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *EXAMPLES}
    overview = page("README")
    for name in EXAMPLES:
        assert MARK in page(name)
        assert f"helm/tandem/examples/{name}.yaml" in page(name)
        assert f"({name}.md)" in overview


@pytest.mark.promise("S5-303")
@one_case("name", EXAMPLES)
def test_the_page_says_of_memory_what_the_command_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = _PLAN.findall(page(name))
    assert plans[0][0] == f"{model(name)} --gpu {_gpu(name)} {plan(name)}"
    for command, shown in plans:
        assert _printed(command, capsys) == shown


def test_the_command_s_own_page_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    ((command, shown),) = _PLAN.findall((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
    assert _printed(command, capsys) == shown


def _printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    folder, *flags = shlex.split(command)
    assert main(["plan-fit", str(CONFIGS / folder), *flags]) == 0
    return capsys.readouterr().out


def _gpu(name: str) -> str:
    wanted = chart_renders.values(name)["decode"].get("nodeSelector", {})
    return str(wanted.get("nvidia.com/gpu.product", "NVIDIA-H100")).rpartition("-")[2].lower()


@pytest.mark.promise("S5-303")
@one_case("name", EXAMPLES)
def test_pods_of_decode_request_the_host_memory_that_decode_pins(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = chart_renders.values(name)
    nodes = values["decode"].get("workload", {}).get("nodes", 1)
    found = planned(capsys, name, _gpu(name))["decode"]
    requests = pods.of_values(values)["decode"].main["resources"]["requests"]
    requested = int(requests["memory"].removesuffix("Gi")) * 2**30 * nodes
    processes = (8 * nodes + 2 * requests["nvidia.com/gpu"] * nodes) * 2**30
    assert requested >= found["pinned_bytes"] + processes


@pytest.mark.promise("S5-423")
@one_case(
    ("name", "phase", "pool"),
    [
        ("hicache", "prefill", 120),
        ("hicache-mooncake", "prefill", 60),
        ("hicache-decode", "prefill", 60),
        ("hicache-decode", "decode", 20),
    ],
)
def test_a_pod_requests_the_host_memory_that_its_cache_takes(
    name: str, phase: str, pool: int
) -> None:
    values = chart_renders.values(name)
    given = json.loads(values[phase]["engineOptions"]["server_args"])
    assert given["hicache_size"] == pool
    assert f"{int(pool * 10**9 // KV_BYTES):,} tokens" in page(name)
    cache = -(-(pool * 10**9) // 2**30)
    requested = pods.of_values(values)[phase].main["resources"]["requests"]["memory"]
    assert requested == f"{cache + WORKER_GIB + ROOM_GIB}Gi"
    assert f" {cache} " in page(name).replace("|", " ")


@pytest.mark.promise("S5-423")
@one_case(
    ("name", "phase"),
    [("hicache-mooncake", "prefill"), ("hicache-decode", "prefill"), ("hicache-decode", "decode")],
)
def test_a_phase_reaches_the_store_and_nothing_else_that_it_did_not(name: str, phase: str) -> None:
    with_store, without = (_egress(chart_renders.values(each), phase) for each in (name, "hicache"))
    (opened,) = [rule for rule in with_store if rule not in without]
    (peer,) = opened["to"]
    assert peer["podSelector"] == {"matchLabels": {"app": "mooncake"}}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "mooncake"}


def _egress(values: dict[str, Any], component: str) -> list[dict[str, Any]]:
    (rules,) = [
        each["spec"]["egress"]
        for each in chart_renders.manifests(values)
        if each["kind"] == "NetworkPolicy"
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return list(rules)


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="`make chart-test` sets up no SGLang")
@pytest.mark.promise("S5-423")
def test_sglang_keeps_kv_in_the_host_s_memory_where_the_examples_say_so() -> None:
    made_of = {name: made(name, Role.PREFILL) for name in ("hicache", "hicache-mooncake")}
    answers = sglang_arguments.ask(list(made_of.values()))["resolved"]
    for name, resolved in zip(made_of, answers, strict=True):
        assert isinstance(resolved, dict), f"{name}: {resolved}"
        assert resolved["enable_hierarchical_cache"] is True
        assert resolved["hicache_host_memory_fraction"] is None, "its own size counts"
        stored = resolved["hicache_storage_backend"]
        assert stored == ("mooncake" if name == "hicache-mooncake" else None)
        assert resolved["hicache_mem_layout"] == "page_first"


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="`make chart-test` sets up no SGLang")
@pytest.mark.promise("S5-482")
def test_decode_writes_answers_to_the_store_as_prefill_names_and_lays_them() -> None:
    prefill, decode = (made("hicache-decode", role) for role in PHASES)
    told = "disaggregation_decode_enable_offload_kvcache"
    storeless = {name: decode[name] for name in decode if name != "hicache_storage_backend"}
    reads, writes, alone, wrong = sglang_arguments.ask(
        [prefill, decode, storeless, prefill | {told: True}]
    )["resolved"]
    assert (reads["enable_hierarchical_cache"], writes["enable_hierarchical_cache"]) == (
        True,
        False,
    )
    assert (reads[told], writes[told]) == (False, True)
    assert writes["hicache_host_memory_fraction"] is None, "its own size counts"
    for name in (
        "hicache_storage_backend",
        "hicache_storage_backend_extra_config",
        "hicache_mem_layout",
        "page_size",
        "served_model_name",  # a part of each page's name
        "tp_size",
    ):
        assert reads[name] == writes[name], name
    assert "only supported when hicache-storage-backend is provided" in alone
    assert "only supported for decode side" in wrong


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="`make chart-test` sets up no SGLang")
def test_decode_copies_to_the_host_s_memory_what_it_keeps_alone() -> None:
    """As docs/recipes/hicache.md says of decode."""
    in_memory = {"server_args": '{"enable_hierarchical_cache": true}'}
    given = [
        arguments.server_args(
            options.parse({"device": "cuda", **in_memory, "decode_prefix_cache": keeps}),
            role=Role.DECODE,
            model_path=CONFIGS / "Qwen3-8B",
            max_sequences=32,
            host="10.0.0.1",
            device="cuda",
            ports=Ports(bootstrap=7110),
            processors=True,
        )
        for keeps in (False, True)
    ]
    alone, beside = sglang_arguments.ask(given)["resolved"]
    assert "enable-hierarchical-cache and disable-radix-cache are mutually exclusive" in alone
    assert beside["enable_hierarchical_cache"] is True


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="`make chart-test` sets up no SGLang")
@pytest.mark.promise("S5-303")
def test_sglang_takes_what_workers_of_each_example_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = [(name, role) for name in OF_SGLANG for role in PHASES]
    given = [made(name, role) for name, role in cases]
    answers = sglang_arguments.ask(given)["resolved"]
    for (name, role), asked, resolved in zip(cases, given, answers, strict=True):
        assert isinstance(resolved, dict), f"{name} {role}: {resolved}"
        assert resolved["page_size"] == 64
        assert resolved["disaggregation_mode"] == role.value
        chosen = options.parse(settings(name, role.value).engine_options)
        kept.check(kept.of(asked, chosen), resolved)
        if chart_renders.values(name).get("engine", {}).get("decodeTensorParallel"):
            assert not resolved["unequal"], "SGLang hands its KV over between unequal ranks"
        share = planned(capsys, name)[role.value]["memory_share"]
        assert resolved["mem_fraction_static"] == share, f"{name} {role}"


@pytest.mark.promise("S5-862")
@one_case(("name", "role"), [(name, role) for name in OF_VLLM for role in PHASES])
def test_workers_of_vllm_are_told_what_their_memory_was_reckoned_with(
    name: str, role: Role, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = settings(name, role.value)
    assert loaded.engine == "vllm"
    told = vllm_options.parse(loaded.engine_options)
    figures = planned(capsys, name)[role.value]
    assert told.gpu_memory_utilization == figures["memory_share"]
    assert told.page_size == figures["page_size"]
    assert told.max_batched_tokens == figures["batched_tokens"]
    assert loaded.max_sequences <= figures["max_sequences"]
    assert figures["fits"]
    pod = pods.of_set(name)[role.value].main
    assert pod["resources"]["limits"]["nvidia.com/gpu"] == figures["division"]["tensor"] == 1
    assert pod["image"].startswith("ghcr.io/tandem-serving/tandem-vllm:")
    # The page names how many sequences fit, of those that the setting allows.
    assert f" {figures['sequences']} " in page(name)


@pytest.mark.promise("S5-303")
def test_examples_of_large_models_divide_them_as_their_pages_say() -> None:
    llama, deepseek = (
        [made(name, role) for role in PHASES] for name in ("llama-3.3-70b", "deepseek-v3")
    )
    assert [each["tp_size"] for each in llama] == [4, 8]
    assert [each["dp_size"] for each in deepseek] == [16, 16]
    assert all(each["enable_dp_attention"] for each in deepseek)
    # SGLang divides a step among the groups.
    assert deepseek[0]["chunked_prefill_size"] == 16 * 8192
