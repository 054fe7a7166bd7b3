"""Helm 4 and Helm 3 make of the chart what the library of the other tests makes of it, and refuse
what it refuses. They merge nulls, read schemas and print numbers by rules of their own.

Each is tried where it is there: `helm` on the PATH, and the Helm 3 that TANDEM_TEST_HELM3 names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from typing import Any

import chart_renders
import helm_python
import pods
import pytest
import yaml
from chart_renders import CHART, NAMESPACE, RELEASE, Manifest
from refusals import REFUSED, UNKNOWN

HELM_3 = "TANDEM_TEST_HELM3"
HELMS = {"helm": shutil.which("helm") or "", "helm3": os.environ.get(HELM_3, "")}
"""The programs by their names in tests; empty: it is not there."""
KUBERNETES = "1.34.0"
"""A Helm that `go install` built believes in 1.20 unless it is told."""
LARGE = 2**32
"""Above a million, where Go prints a number that was a float with an exponent."""
USERS = {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}
VALUES: dict[str, dict[str, Any]] = {
    "numbers-left-to-others": {
        each: {"replicas": None} for each in ("router", "prefill", "decode")
    },
    "large-numbers": {
        "router": {
            "config": {"max_held_bytes": LARGE},
            "drain": {"timeoutSeconds": 2_000_000},
            "startupSeconds": 3_000_000,
            "podSecurityContext": {"runAsUser": 1_000_650_000, "fsGroup": 1_000_650_000},
        },
        "frontend": {"replicas": 1_000_000},
        "tls": {"controller": {"podSecurityContext": {"runAsUser": 1_000_650_000}}},
    },
    **{name: dict(chart_renders.values(name)) for name in chart_renders.SETS},
}
SAID = ("name-of-no-service", "ipc-lock", "phases-that-differ", "share-of-nothing")
SCHEMA = (
    "top",
    "type",
    "negative",
    "enum",
    "digest",
    "port",
    "label",
    "variable",
    "family",
    "option",
)
"""Cases of each keyword of the schema."""
NULLS = ("decode", "image", "global", "tls.controller", "frontend.service.port", "model.uri")
each_helm = pytest.mark.parametrize("helm", HELMS)
HELM_3_TOO = ("numbers-left-to-others", "large-numbers", "default", "openshift")
"""Sets that Helm 3 renders in the short form too: those by which Helms differ, and the default."""


def template(helm: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values."""
    if not HELMS[helm]:
        pytest.skip(f"no Helm on the PATH, or {HELM_3} does not name one")
    where = (RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    given = yaml.safe_dump(json.loads(json.dumps(values)))
    return subprocess.run(
        [HELMS[helm], "template", *where, "--values", "-"],
        input=given, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@cache
def rendered(helm: str, name: str) -> tuple[Manifest, ...]:
    done = template(helm, VALUES[name])
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


@pytest.mark.promise("S5-291", "S5-314")
@pytest.mark.parametrize(
    ("helm", "name"),
    [
        pytest.param(
            helm,
            name,
            id=f"{helm}-{name}",
            marks=[] if helm == "helm" or name in HELM_3_TOO else pytest.mark.long,
        )
        for helm in HELMS
        for name in VALUES
    ],
)
def test_each_helm_renders_the_same(helm: str, name: str) -> None:
    expected = chart_renders.manifests(VALUES[name])
    assert sorted(map(json.dumps, rendered(helm, name))) == sorted(map(json.dumps, expected))


@pytest.mark.promise("S5-314")
@each_helm
def test_on_openshift_no_pod_names_a_user_with_either_helm(helm: str) -> None:
    """A null in the values, as recipes for OpenShift have it, takes a user away in some Helms
    alone: the library of the other tests passes it on, and 3.19 and 4.0 drop it.
    """
    found = list(pods.of(rendered(helm, "openshift")))
    assert {pod.component for pod in found} >= {"frontend", "prefill", "tls", "model", "test"}
    for pod in found:
        for context in (pod.spec, *pod.containers):
            assert not USERS & context["securityContext"].keys()
    (router,) = (pod for pod in pods.of(rendered(helm, "default")) if pod.component == "router")
    assert router.spec["securityContext"].keys() > USERS


@pytest.mark.promise("S5-312")
@each_helm
def test_large_numbers_stay_whole(helm: str) -> None:
    (router,) = (p for p in pods.of(rendered(helm, "large-numbers")) if p.component == "router")
    assert router.settings["max_held_bytes"] == LARGE
    assert "e+" not in router.carried("settings")["tandem.yaml"]
    assert router.spec["securityContext"]["runAsUser"] == 1_000_650_000
    assert router.spec["terminationGracePeriodSeconds"] > 2_000_000


@pytest.mark.promise("S5-312")
@pytest.mark.parametrize("case", SAID)
@each_helm
def test_each_helm_says_what_to_change(helm: str, case: str) -> None:
    values, sentence = REFUSED[case]
    done = template(helm, values)
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.mark.promise("S5-312")
@pytest.mark.parametrize("case", SCHEMA)
@each_helm
def test_each_helm_refuses_what_is_no_value_by_the_same_sentence(helm: str, case: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as caught:
        chart_renders.texts(UNKNOWN[case])
    done = template(helm, UNKNOWN[case])
    assert done.returncode != 0
    sentences = [line for line in str(caught.value).splitlines() if line.startswith("- at ")]
    assert sentences
    assert all(sentence in done.stderr for sentence in sentences)


@pytest.mark.promise("S5-312")
@pytest.mark.parametrize("path", NULLS)
@each_helm
def test_each_helm_refuses_a_null_by_name(helm: str, path: str) -> None:
    *above, name = path.split(".")
    given: Any = {name: None}
    for key in reversed(above):
        given = {key: given}
    done = template(helm, given)
    assert done.returncode != 0
    assert f"missing property '{name}'" in done.stderr
