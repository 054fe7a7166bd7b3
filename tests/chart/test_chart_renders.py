"""Every set of values makes objects that Kubernetes takes, and no more than the chart should."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from typing import Any

import chart_renders
import helm_python
import jsonschema
import pytest
from chart_renders import CHART, NAMESPACE, SETS, Manifest
from custom_kinds import SPECS
from kubernetes_validate.utils import schema_contents
from one_case import one_case
from referencing import Registry, Resource

KUBERNETES = ("1.29", "1.36")
KINDS = {
    *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "Job"),
    *("NetworkPolicy", "Secret"),
    *("PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "Role", "RoleBinding", "Service"),
    *("ServiceAccount", *(kind for _, kind in SPECS)),
}
NEWER = {
    # Set -> the oldest Kubernetes that knows a field in it, as values.yaml says.
    "existing-secrets": "1.32",
    "gpu-rdma": "1.32",
}


@one_case(
    ("name", "version"),
    [(name, each) for name in SETS for each in KUBERNETES if each >= NEWER.get(name, "")],
)
def test_every_object_is_valid(name: str, version: str) -> None:
    objects = chart_renders.of_set(name)
    assert len(objects) > 20
    for each in objects:
        if (each["apiVersion"], each["kind"]) in SPECS:
            jsonschema.validate(each["spec"], SPECS[each["apiVersion"], each["kind"]])
            if each["kind"] == "LeaderWorkerSet":
                _validate(_as_deployment(each), version)
        else:
            _validate(each, version)


def _as_deployment(each: Manifest) -> Manifest:
    """With the same pods, whose fields Kubernetes knows."""
    template = each["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    metadata = {"name": each["metadata"]["name"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


_VALID: set[tuple[str, str]] = set()
"""Objects that were valid: sets have most of theirs in common."""


def _validate(each: Manifest, version: str) -> None:
    seen = (json.dumps(each), version)
    if seen not in _VALID:
        _validator(each["apiVersion"], each["kind"], version).validate(each)
        _VALID.add(seen)


@functools.cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    """`kubernetes_validate.validate` makes one for each object anew, which takes 30 ms."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = _schema(f"{kind.lower()}-{group}", version)
    return jsonschema.Draft202012Validator(schema, registry=_definitions(version))


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    return (Resource.from_contents(_schema("_definitions", version)) @ Registry()).crawl()


def _schema(name: str, version: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    return schema_contents(f"{folder}/{name}.json", version)


def test_a_misspelt_field_would_be_found() -> None:
    deployment = _first(chart_renders.of_set("default"), "Deployment")
    broken = {**deployment, "spec": {**deployment["spec"], "replcas": 1}}
    with pytest.raises(jsonschema.ValidationError, match="replcas"):
        _validate(broken, "1.36")


@one_case("name", ["default", "gpu-rdma", "openshift", "several-models"])
def test_lint_finds_nothing(name: str) -> None:
    """It reads the same texts as the tests of every set, for what Helm calls bad style."""
    found = helm_python.lint(CHART, dict(chart_renders.values(name)), strict=True)
    assert [each for each in found["messages"] if each["severity"] > 1] == []


@one_case("name", SETS)
def test_nothing_reaches_beyond_the_namespace(name: str) -> None:
    """No cluster role, no CRD, no webhook."""
    for each in chart_renders.of_set(name):
        assert each["kind"] in KINDS
        if "dashboard" not in each["metadata"]["name"] and not _is_extra(each):
            assert each["metadata"]["namespace"] == NAMESPACE


@one_case("name", SETS)
def test_objects_are_named_once_and_briefly(name: str) -> None:
    objects = chart_renders.of_set(name)
    assert max(Counter((each["kind"], each["metadata"]["name"]) for each in objects).values()) == 1
    assert all(len(each["metadata"]["name"]) <= 63 for each in objects)


@one_case("name", SETS)
def test_objects_bear_the_common_labels(name: str) -> None:
    given = chart_renders.values(name).get("commonLabels", {})
    for each in chart_renders.of_set(name):
        if _is_extra(each):
            continue
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tandem"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("tandem-")
        assert {"app.kubernetes.io/name", "app.kubernetes.io/version"} < labels.keys()
        assert labels["app.kubernetes.io/instance"] == chart_renders.RELEASE
        assert given.items() <= labels.items()
        assert all(len(value) <= 63 for value in labels.values())


def test_two_long_names_that_begin_alike_stay_two() -> None:
    long = "an-installation-whose-name-is-longer-than-a-label"
    names = {
        _first(chart_renders.manifests({"fullnameOverride": long + end}), "Deployment")["metadata"][
            "name"
        ]
        for end in ("-a", "-b")
    }
    assert len(names) == 2


def test_a_registry_for_all_images_replaces_the_host_alone() -> None:
    objects = chart_renders.of_set("restricted")
    images = {
        container["image"]
        for each in objects
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.internal:5000/mirror/tandem-serving/tandem:0.1.0"}


def _first(objects: tuple[Manifest, ...], kind: str) -> Manifest:
    return next(each for each in objects if each["kind"] == kind)


def _is_extra(each: Manifest) -> bool:
    return each["metadata"]["name"] == f"{chart_renders.RELEASE}-extra"
