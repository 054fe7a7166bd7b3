"""What the chart writes for a component is what that component's own code takes."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import chart_renders
import pods
import pytest
import yaml
from chart_renders import ROOT, SETS
from one_case import one_case
from pods import by_name

from tandem import cli, config, ranges
from tandem.cli import schema
from tandem.engine.base import ONE_NODE, Nodes
from tandem.hooks import settings as hook_settings
from tandem.stack_file import OWNED
from tandem.worker.config import WorkerConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig
from tandem_sglang import options as sglang_options
from tandem_sim import faults
from tandem_sim import options as sim_options
from tandem_vllm import options as vllm_options

CLASSES: dict[str, type[Any]] = {
    "frontend": FrontendConfig,
    "router": RouterConfig,
    "prefill": WorkerConfig,
    "decode": WorkerConfig,
}
FIELDS = {"metadata.name": "tandem-prefill-5f7-x2x", "status.podIP": "10.1.2.3"}


@cache
def settings(name: str, component: str) -> Any:
    """What the component makes of its file and its environment."""
    pod = pods.of_set(name)[component]
    environ = {}
    for variable in pod.main["env"]:
        source = variable.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        value = variable.get("value") or FIELDS.get(field, "from a secret")
        environ[variable["name"]] = pods.expand(value)
    assert environ["TANDEM_CONFIG"] == "/etc/tandem/tandem.yaml"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tandem.yaml"
        file.write_text(pod.carried("settings")["tandem.yaml"], encoding="utf-8")
        environ["TANDEM_CONFIG"] = str(file)
        return config.load(CLASSES[component], prog=component, argv=[], environ=environ)


@one_case("component", CLASSES)
@one_case("name", SETS)
def test_a_component_takes_its_settings(name: str, component: str) -> None:
    loaded = settings(name, component)
    ports = {port["name"]: port["containerPort"] for port in _ports(name, component)}
    main = ports.get("http") or ports["grpc"]
    host = chart_renders.values(name).get("global", {}).get("listen", "0.0.0.0")
    assert loaded.listen == f"{host}:{main}"
    assert loaded.metrics_listen == f"{host}:{ports['metrics']}"
    grace = pods.of_set(name)[component].spec["terminationGracePeriodSeconds"]
    assert grace > loaded.drain_seconds


@one_case("phase", ["prefill", "decode"])
@one_case("name", SETS)
def test_an_engine_takes_its_options(name: str, phase: str) -> None:
    loaded = settings(name, phase)
    if loaded.engine == "sglang":
        options = sglang_options.parse(loaded.engine_options)
        assert (options.bootstrap_port == 7110) is (phase == "prefill")
    elif loaded.engine == "vllm":
        vllm = vllm_options.parse(loaded.engine_options)
        ports = (7110, 7111) if phase == "prefill" else (0, 0)
        assert (vllm.kv_port, vllm.side_channel_port) == ports
    else:
        sim = sim_options.parse(sim_options.SimOptions, loaded.engine_options)
        assert (sim.kv_port == 7110) is (phase == "prefill")
    hook_settings.parse(loaded.hook, loaded.hooks)


@one_case("name", SETS)
def test_both_phases_can_pair_and_are_ready_when_they_do(name: str) -> None:
    prefill, decode = (settings(name, phase) for phase in ("prefill", "decode"))
    for field in ("deployment_revision", "engine", "model_path", "served_model_name"):
        assert getattr(prefill, field) == getattr(decode, field)
    assert len(prefill.deployment_revision) == 12
    assert prefill.ready_when_paired
    assert decode.ready_when_paired


@one_case("phase", ["prefill", "decode"])
def test_a_node_takes_its_place_in_the_group_from_the_controller(phase: str) -> None:
    nodes = settings("multi-node", phase).engine_nodes()
    assert nodes == Nodes(count=2, rank=1, leader="leader.group.tandem:7120")
    assert settings("default", phase).engine_nodes() == ONE_NODE


@one_case("name", SETS)
def test_components_find_each_other(name: str) -> None:
    services = by_name(name, "Service")
    frontend = settings(name, "frontend")
    address, *others = frontend.router
    assert others == chart_renders.values(name).get("frontend", {}).get("routers", [])
    host, _, port = address.removeprefix("dns://").partition(":")
    assert int(port) in [each["port"] for each in services[host]["spec"]["ports"]]
    headless = services[host]["spec"].get("clusterIP") == "None"
    assert headless is address.startswith("dns://")
    router = settings(name, "router")
    if router.discovery == "kubernetes":
        assert {router.prefill_service, router.decode_service} < services.keys()
    else:
        for address in (*router.prefill, *router.decode):
            assert address.partition(":")[0] in services


def test_a_frontend_is_given_the_models_of_other_releases() -> None:
    made = settings("several-models", "frontend")
    assert made.models == {"llama-3.3": "/further-models/llama-3.3", "own": "/own-models/own"}
    pod = by_name("several-models", "Deployment")["tandem-frontend"]["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    (names,) = [each for each in pod["volumes"] if each["name"] == "model-names"]
    assert names["configMap"] == {"name": "model-names"}
    assert made.model_names_file == "/etc/tandem-names/names.yaml"
    assert "subPath" not in mounts["/etc/tandem-names"], "else it would never change"
    fetches = [each for each in pod["initContainers"] if "/further-models" in str(each["args"])]
    (fetch,) = fetches
    assert "--only-tokenizer" in fetch["args"]
    assert "--to=/further-models/llama-3.3" in fetch["args"]
    assert {"name": "further-models", "mountPath": "/further-models"} in fetch["volumeMounts"]
    assert mounts["/further-models"]["readOnly"]


@pytest.mark.promise("S5-412")
@one_case("phase", ["prefill", "decode"])
def test_both_phases_are_given_the_same_adapters(phase: str) -> None:
    made = settings("lora", phase)
    folders = {"sql": "/lora-adapters/sql", "tone-2": "/adapters/tone-2"}
    assert made.lora_adapters == folders
    pod = by_name("lora", "Deployment")[f"tandem-{phase}"]["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["/lora-adapters"]["readOnly"]
    assert "/adapters" in mounts
    (fetch,) = [each for each in pod["initContainers"] if "--lora" in each["args"]]
    assert fetch["command"][-1] == "hf://org/qwen3-sql"
    assert "--to=/lora-adapters/sql" in fetch["args"]
    assert {"name": "lora-adapters", "mountPath": "/lora-adapters"} in fetch["volumeMounts"]
    assert "HF_TOKEN" in [each["name"] for each in fetch["env"]]


@pytest.mark.promise("S5-277")
def test_routers_that_divide_workers_know_themselves_by_their_service() -> None:
    """What its Service lists of a router is what the router takes for itself."""
    router = settings("hpa", "router")
    assert router.decode_routers == 2
    assert router.own_address == "10.1.2.3:7000"
    service = by_name("hpa", "Service")[router.router_service]["spec"]
    assert service["selector"]["app.kubernetes.io/component"] == "router"
    (target,) = {each["targetPort"] for each in service["ports"] if each["name"] == "grpc"}
    ports = {each["name"]: each["containerPort"] for each in _ports("hpa", "router")}
    assert ports[target] == 7000
    assert not service.get("publishNotReadyAddresses"), "one that is not ready does not count"
    assert settings("default", "router").decode_routers == 0


SGLANG = {"model": {"uri": "pvc://m"}}
ALONE: dict[str, tuple[dict[str, Any], float | None]] = {
    # Case -> values, and how long requests wait for a pair; None: as the router decides.
    "sglang": (SGLANG, 1800 + 1800 + 60),
    "sglang-that-loads-for-longer": ({**SGLANG, "decode": {"startupSeconds": 3000}}, 4860),
    "sglang-with-several-of-each": (
        {**SGLANG, "prefill": {"replicas": 2}, "decode": {"replicas": 3}},
        None,
    ),
    "sglang-with-one-phase-of-one": ({**SGLANG, "prefill": {"replicas": 2}}, 3660),
    "sglang-scaled-by-others": (
        {**SGLANG, "prefill": {"replicas": None}, "decode": {"replicas": 2}},
        3660,
    ),
    "sglang-that-an-autoscaler-leaves-one-of": (
        {
            **SGLANG,
            "prefill": {"replicas": 2},
            "decode": {"autoscaling": {"type": "hpa", "minReplicas": 1}},
        },
        3660,
    ),
    "aggregated-workers-alone": (
        {
            **SGLANG,
            "prefill": {"replicas": 0},
            "decode": {"replicas": 0},
            "worker": {"enabled": True, "replicas": 2},
        },
        None,
    ),
    "vllm": ({**SGLANG, "engine": {"type": "vllm"}}, 1800 + 1800 + 60),
    "sim": ({}, 60),
    "a-value-of-the-operator-s": ({**SGLANG, "router": {"config": {"pair_wait_seconds": 5}}}, 5),
}


@pytest.mark.promise("S5-505")
@one_case("case", ALONE)
def test_requests_wait_for_the_only_worker_as_long_as_its_next_start_may_take(case: str) -> None:
    values, seconds = ALONE[case]
    router = RouterConfig(**_of_router(values))
    assert router.pair_wait_seconds == (seconds or RouterConfig().pair_wait_seconds)
    # Else they would be refused at once before it is there.
    assert router.pair_memory_seconds >= router.pair_wait_seconds


@pytest.mark.promise("S5-505")
@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 120),
        ({"router": {"startupSeconds": 300}}, 300),
        ({"router": {"replicas": 2}}, None),
        ({"frontend": {"config": {"router_wait_seconds": 5}}}, 5),
    ],
)
def test_requests_wait_for_the_only_router_as_long_as_its_next_start_may_take(
    values: dict[str, Any], seconds: float | None
) -> None:
    assert pods.of_values(values)["frontend"].settings.get("router_wait_seconds") == seconds


def _of_router(values: dict[str, Any]) -> dict[str, Any]:
    given = pods.of_values(values)["router"].settings
    return {name: given[name] for name in given if name.endswith("_seconds")}


@one_case("component", CLASSES)
@one_case("name", SETS)
def test_variables_are_settings(name: str, component: str) -> None:
    known = {config.variable_name(field.name) for field in dataclasses.fields(CLASSES[component])}
    names = {each["name"] for each in pods.of_set(name)[component].main["env"]}
    assert {each for each in names if each.startswith("TANDEM_")} <= {*known, "TANDEM_CONFIG"}


FOLLOWING = {
    "frontend": {"router_wait_seconds"},
    "router": {"pair_wait_seconds", "pair_memory_seconds"},
}
"""Settings that follow from other values of the chart, unless `config` has them."""


@one_case("component", CLASSES)
def test_what_the_chart_writes_itself_is_not_taken_from_config(component: str) -> None:
    """Else one of two values would silently win."""
    written: set[str] = set()
    for name in SETS:
        given = chart_renders.values(name).get(component, {}).get("config", {})
        found = yaml.safe_load(pods.of_set(name)[component].carried("settings")["tandem.yaml"])
        written |= found.keys() - given.keys()
    assert written - FOLLOWING.get(component, set()) <= OWNED[component]
    fields = {field.name for field in dataclasses.fields(CLASSES[component])}
    assert OWNED[component] <= fields


ENGINES = (sim_options.SimOptions, sglang_options.Options, vllm_options.Options)


def test_options_of_all_engines_are_known_to_the_schema() -> None:
    known = schema.of_settings("engine").keys() | OWNED["engine"]
    faulty, *engines = (
        {field.name for field in dataclasses.fields(each)} for each in (faults.Faults, *ENGINES)
    )
    assert known == {f"fault_{name}" for name in faulty}.union(*engines)


def test_an_option_of_several_engines_takes_what_any_of_them_does() -> None:
    """Else one engine's bound would refuse what another one takes."""
    of_chart = schema.of_settings("engine")
    for each in ENGINES:
        for field in dataclasses.fields(each):
            found = of_chart.get(field.name, {})
            bounds = ranges.of(field)
            for name, bound, loosest in (
                ("minimum", bounds.at_least, -math.inf),
                ("exclusiveMinimum", bounds.above, -math.inf),
                ("maximum", bounds.at_most, math.inf),
                ("exclusiveMaximum", bounds.below, math.inf),
            ):
                own = loosest if bound is None else bound
                theirs = found.get(name, loosest)
                assert theirs <= own if loosest < 0 else theirs >= own, (each, field.name)
    assert of_chart["page_size"]["description"]


@one_case("name", SETS)
def test_commands_exist(name: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for component in CLASSES:
        (command,) = pods.of_set(name)[component].main["command"]
        assert command in scripts


@one_case("name", SETS)
def test_the_tandem_command_takes_its_arguments(name: str) -> None:
    """`helm test` and downloads."""
    seen = 0
    for pod in pods.of(chart_renders.of_set(name)):
        for container in pod.containers:
            program, *arguments = container["command"]
            if program == "tandem":
                cli.parsed([*arguments, *container["args"]])
                seen += 1
    assert seen >= 1


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"frontend": {"replicas": 5}}, True),
        ({"decode": {"resources": {"requests": {"cpu": "2", "memory": "2Gi"}}}}, True),
        ({"model": {"preload": {"enabled": False}}}, True),
        ({"image": {"tag": "other"}}, False),
        ({"engine": {"vllmImage": {"tag": "other"}}}, True),
        ({"hooks": {"workers": 1}}, False),
        ({"logitsProcessors": {"a": "b:C"}}, False),
        ({"loraAdapters": [{"name": "a", "path": "/a"}]}, False),
        ({"code": {"files": {"a.py": "A = 1"}}}, False),
        ({"engine": {"options": {"page_size": 32}}}, False),
        ({"kvTransfer": {"ucx": {"tls": "tcp"}}}, False),
        ({"model": {"name": "other"}}, False),
    ],
)
def test_workers_of_two_revisions_never_pair(change: dict[str, Any], same: bool) -> None:
    """Nor is every worker replaced for what it does not share."""
    assert (_revision(change) == _revision({})) is same


def _revision(values: dict[str, Any]) -> str:
    return str(pods.of_values(values)["prefill"].settings["deployment_revision"])


def _ports(name: str, component: str) -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = pods.of_set(name)[component].main["ports"]
    return ports


def test_each_frontend_lets_its_part_of_a_key_s_limits_through() -> None:
    signing = settings("existing-secrets", "router")
    assert signing.voucher_key_file == "/etc/tandem-voucher/voucher.key"
    made = settings("existing-secrets", "frontend")
    assert made.api_keys_file == "/etc/tandem-keys/keys.jsonl"
    assert made.key_limit_shares == 2


def test_a_keys_file_may_be_mounted_by_whoever_brings_it() -> None:
    values = {"frontend": {"replicas": 4, "apiKeysFile": {"path": "/mnt/vault/keys.jsonl"}}}
    content = pods.of_values(values)["frontend"].settings
    assert content["api_keys_file"] == "/mnt/vault/keys.jsonl"
    assert content["key_limit_shares"] == 4
