"""What containers mount is where they look for it, and every pod is pulled and named as all are."""

from __future__ import annotations

from typing import Any

import chart_renders
import pods
import pytest
from chart_renders import SETS
from one_case import one_case
from pods import Pod

WORKERS = ("prefill", "decode", "worker")
COMPONENTS = ("frontend", "router", *WORKERS)
each_pod = one_case(
    ("name", "pod"),
    lambda: [
        pytest.param(name, pod, id=f"{name}-{pod.owner}")
        for name in SETS
        for pod in pods.of(chart_renders.of_set(name))
    ],
)


@each_pod
def test_a_file_that_settings_name_is_in_a_volume_of_the_container(name: str, pod: Pod) -> None:
    if pod.component not in COMPONENTS:
        return
    volumes = {each["name"]: each for each in pod.spec["volumes"]}
    for key, value in pod.settings.items():
        if isinstance(value, str) and value.startswith(("/etc/tandem", "/models", "/model/")):
            mount = _mount(pod.main, value)
            assert mount["readOnly"], key
            items = volumes[mount["name"]].get("secret", {}).get("items")
            paths = [f"{mount['mountPath']}/{each['path']}" for each in items or ()]
            assert items is None or value in paths, key


@each_pod
def test_a_download_writes_what_the_pod_reads_where_it_reads(name: str, pod: Pod) -> None:
    """Frontends read a tokenizer alone, and so do simulated workers."""
    given = chart_renders.chart().merge_values(dict(chart_renders.values(name)))["model"]
    for container in (each for each in pod.containers if "fetch-model" in each["command"]):
        uri, arguments = container["command"][-1], container["args"]
        (to,) = (each.partition("=")[2] for each in arguments if each.startswith("--to="))
        volume = _mount(container, to)["name"]
        if pod.component != "model":
            assert _mount(pod.main, to) | {"readOnly": True} == _mount(pod.main, to)
            assert _mount(pod.main, to)["name"] == volume
        own = container["name"] == "fetch-model"
        light = pod.component == "frontend" or (own and pod.component in WORKERS and _is_sim(pod))
        assert ("--only-tokenizer" in arguments) is light
        if own:
            revision = [f"--revision={given['revision']}"] if uri.startswith("hf://") else []
            assert [each for each in arguments if each.startswith("--revision")] == revision
            assert uri == given["uri"]
            assert to == pod.settings["model_path"] if pod.component != "model" else to
        tokens = [each["valueFrom"] for each in container["env"] if each["name"] == "HF_TOKEN"]
        secret = {"name": given["auth"]["existingSecret"], "key": given["auth"]["key"]}
        assert tokens == ([{"secretKeyRef": secret}] if secret["name"] else [])
        assert container.get("envFrom", []) == given["extraEnvFrom"]
        assert container["resources"] == given["preload"]["resources"]


@each_pod
def test_python_finds_code_where_it_is_mounted_for_reading(name: str, pod: Pod) -> None:
    variables = {each["name"]: each.get("value", "") for each in pod.main["env"]}
    paths = [each for each in variables.get("PYTHONPATH", "").split(":") if each]
    mounted = {each["mountPath"] for each in pod.main["volumeMounts"] if "/code" in str(each)}
    assert {_mount(pod.main, each)["mountPath"] for each in paths} == mounted
    assert all(_mount(pod.main, each)["readOnly"] for each in paths)
    for copy in (each for each in pod.containers if each["name"] == "copy-code"):
        (mount,) = copy["volumeMounts"]
        assert copy["command"][-1] == mount["mountPath"] in paths
        assert mount["name"] == _mount(pod.main, mount["mountPath"])["name"]


@each_pod
def test_secrets_are_readable_by_the_pod_s_group_alone(name: str, pod: Pod) -> None:
    for volume in pod.spec["volumes"]:
        if "secret" in volume and pod.component != "test":  # which mounts what is public
            assert volume["secret"]["defaultMode"] == 0o440, volume["name"]


@each_pod
def test_every_pod_is_pulled_and_named_as_all_are(name: str, pod: Pod) -> None:
    """Variables of Services, one for each in the namespace, could be taken for settings."""
    values = chart_renders.values(name)
    assert pod.spec["enableServiceLinks"] is False
    assert pod.spec.get("imagePullSecrets", []) == values.get("global", {}).get(
        "imagePullSecrets", []
    )
    assert values.get("commonLabels", {}).items() <= pod.labels.items()
    assert values.get("commonAnnotations", {}).items() <= pod.annotations.items()
    for container in pod.containers:
        if container["name"] != "copy-code":  # runs no program of Tandem
            variables = {each["name"]: each.get("value") for each in container["env"]}
            assert variables["HOME"] == "/tmp"


@one_case("name", SETS)
def test_a_rollout_of_what_has_no_accelerator_takes_no_pod_away_first(name: str) -> None:
    for each in chart_renders.of_set(name):
        component = each["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        if each["kind"] == "Deployment" and component in ("frontend", "router", "tls"):
            assert each["spec"]["strategy"] == {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            }


def _mount(container: dict[str, Any], path: str) -> dict[str, Any]:
    """The mount that a path lies in."""
    (found,) = (
        each for each in container["volumeMounts"] if f"{path}/".startswith(f"{each['mountPath']}/")
    )
    return {"readOnly": False, **found}


def _is_sim(pod: Pod) -> bool:
    return bool(pod.settings["engine"] == "sim")
