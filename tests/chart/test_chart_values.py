"""values.yaml is the manual: it is complete, what follows from it is up to date, and what cannot
work is refused, saying what to change.
"""

from __future__ import annotations

import re
from typing import Any

import chart_renders
import chart_values
import generate_chart
import helm_python
import pytest
import yaml
from chart_renders import CHART, ROOT
from one_case import one_case
from refusals import GPU, NODES, RDMA, REFUSED, UNKNOWN, VLLM

VALUES = list(chart_values.read(CHART / "values.yaml"))
ALLOWED_BY_A_LEVEL = [case for case, (_, text) in REFUSED.items() if "podSecurity" in text]
NULLABLE = {each.path for each in VALUES if "null" in each.schema.get("type", ())}


@pytest.mark.promise("S5-312", "S5-506", "S5-850")
@one_case("case", REFUSED)
def test_what_cannot_work_is_refused_with_its_mend(case: str) -> None:
    """A privileged namespace takes what its level allows, and lifts no other refusal."""
    values, sentence = REFUSED[case]
    if case not in ALLOWED_BY_A_LEVEL:
        values = {**values, "global": {"podSecurity": "privileged"}}
    with pytest.raises(helm_python.HelmRenderError) as caught:
        chart_renders.texts(values)
    assert sentence in str(caught.value)


@one_case("case", ALLOWED_BY_A_LEVEL)
def test_a_privileged_namespace_takes_what_its_level_allows(case: str) -> None:
    values, _ = REFUSED[case]
    without_policies = {"networkPolicy": {"enabled": False}}
    chart_renders.texts({**values, "global": {"podSecurity": "privileged"}, **without_policies})


def test_every_refusal_has_a_test() -> None:
    text = (CHART / "templates" / "validate.yaml").read_text(encoding="utf-8")
    second_ways = 17  # to a sentence
    assert text.count("{{- fail ") == len(REFUSED) - second_ways


TAKEN: dict[str, dict[str, Any]] = {
    # Case -> what is right, and stands beside what is refused.
    "hooks-of-every-kind": {
        "hooks": {
            "workers": 2,
            "memory_mb": 256,
            "chain": [
                "pii",
                "my.package:Guard",
                {"path": "a.B", "timeout_ms": 0.5, "models": ["m"]},
            ],
        }
    },
    "classifiers-of-every-kind": {
        "classifiers": {
            "hold_back": "all",
            "regenerate": {"times": 2, "temperature": 0},
            "entries": ["webhook", {"path": "a.b:C", "blocking": None, "config": {"url": "x"}}],
        }
    },
    "processors-of-every-kind": {
        "logitsProcessors": {
            "a": "forced_sequence",
            "b": {"use": "m:P", "clients": "none"},
            "c": {},
        }
    },
    "budgets": {
        "decode": {"podDisruptionBudget": {"minAvailable": "50%", "maxUnavailable": 0}},
        "router": {"podDisruptionBudget": {"minAvailable": 1}},
    },
    "quantities": {
        "router": {
            "resources": {"requests": {"cpu": 0.5, "memory": "1.5Gi"}, "limits": {"cpu": 2}}
        },
        "decode": {"resources": {"limits": {"memory": "2e9", "nvidia.com/gpu": 1}}},
    },
    "labels": {"commonLabels": {"example.com/team": "a.b-c_d", "empty": ""}},
    "registries": {"global": {"imageRegistry": "registry.internal:5000/mirror"}},
    "masks": {"networkPolicy": {"egress": {"apiCIDRs": ["10.0.0.1/32", "fd00::/8"]}}},
    "probes": {"decode": {"probes": {"startup": {"periodSeconds": 5, "failureThreshold": 90}}}},
    "no-retries": {"router": {"config": {"max_retries": 0, "max_stories": 0}}},
    "mounts": {
        "router": {
            "extraVolumes": [{"name": "mine", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "mine", "mountPath": "/tmp/mine"}],
        }
    },
    "one-capability": {
        "frontend": {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}
    },
}


@one_case("case", TAKEN)
def test_what_is_right_beside_a_refusal_is_taken(case: str) -> None:
    chart_renders.texts(TAKEN[case])


@pytest.mark.promise("S5-506")
@one_case("case", UNKNOWN)
def test_a_value_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart_renders.texts(UNKNOWN[case])


@pytest.mark.promise("S5-312")
def test_a_null_is_refused_by_name_unless_it_has_a_meaning() -> None:
    """All of a depth at once: Helm names every one that is missing."""
    for depth in range(1, 1 + max(len(each.path) for each in VALUES)):
        paths = {each.path for each in VALUES if len(each.path) == depth} - NULLABLE
        with pytest.raises(helm_python.HelmValuesError) as caught:
            chart_renders.texts(_nulls(paths))
        assert _missing(str(caught.value)) == paths


@one_case("path", NULLABLE, ids=str)
def test_a_null_that_has_a_meaning_is_taken(path: tuple[str, ...]) -> None:
    chart_renders.texts(_nulls({path}))


def _nulls(paths: set[tuple[str, ...]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for *above, name in paths:
        section = values
        for key in above:
            section = section.setdefault(key, {})
        section[name] = None
    return values


def _missing(said: str) -> set[tuple[str, ...]]:
    """The paths of the values that a refusal calls missing."""
    return {
        (*above.strip("/").split("/"), name) if above else (name,)
        for above, names in re.findall(r"at '([^']*)': missing propert(?:y|ies) (.*)", said)
        for name in re.findall(r"'([^']+)'", names)
    }


@pytest.mark.promise("S5-312")
@one_case("release", ["my.release", "1tandem"])
def test_a_release_whose_name_no_service_can_have_is_refused(release: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match="no Service can be called"):
        chart_renders.chart().render({}, name=release, namespace="tandem")
    chart_renders.chart().render({"fullnameOverride": "fine"}, name=release, namespace="tandem")


def test_what_the_values_imply_is_up_to_date() -> None:
    """The schema, the README and deploy/: `make chart` writes them."""
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate_chart.outputs()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == []


def test_nothing_generated_is_left_over() -> None:
    made = {path for path, _ in generate_chart.outputs()}
    assert set(generate_chart.DEPLOY.glob("*.yaml")) <= made


def test_every_value_says_its_effect() -> None:
    mute = [".".join(each.path) for each in VALUES if not each.section and not each.description]
    assert mute == []


def test_sections_take_no_other_keys() -> None:
    open_sections: list[str] = []

    def walk(schema: dict[str, Any], path: str) -> None:
        if "properties" in schema:
            if schema.get("additionalProperties") is not False:
                open_sections.append(path)
            for name, child in schema["properties"].items():
                walk(child, f"{path}.{name}".strip("."))

    walk(chart_renders.chart().schema or {}, "")
    # Helm puts the parent's `global` there where the chart is another one's dependency.
    assert open_sections == ["global"]


@pytest.mark.parametrize(
    ("values", "says", "not_says"),
    [
        ({}, "helm -n tandem test tandem", "WARNING"),
        ({}, "--set model.uri=hf://Qwen/Qwen3-8B", "over TCP"),
        ({}, '"model": "tandem-tiny"', "Bearer"),
        (GPU, "KV cache moves over TCP", "simulated"),
        (VLLM, "KV cache moves over TCP", "simulated"),
        (VLLM, "with the vllm engine", "WARNING"),
        ({"frontend": {"service": {"type": "NodePort"}}}, "WARNING: whoever reaches", "Bearer"),
        (
            {"frontend": {"apiKeys": {"existingSecret": "k"}, "service": {"type": "NodePort"}}},
            '-H "Authorization: Bearer $KEY" http://',
            "WARNING",
        ),
        ({"frontend": {"https": {"existingSecret": "s"}}}, "curl -k https://", "WARNING"),
        ({"networkPolicy": {"enabled": False}}, "WARNING: no NetworkPolicy", "Bearer"),
        ({"tests": {"enabled": False}}, "port-forward", "helm -n tandem test"),
        ({}, "rollout status deployment/tandem-prefill", "--reuse-values"),
        ({}, "rollout status deployment/tandem-router", "leaderworkerset"),
        ({}, "rollout status deployment/tandem-frontend", "leaderworkerset"),
        (NODES, "wait leaderworkerset/tandem-decode", "deployment/tandem-decode"),
    ],
)
def test_the_notes_say_what_to_type_next(values: dict[str, Any], says: str, not_says: str) -> None:
    notes = chart_renders.texts(values)["tandem/templates/NOTES.txt"]
    assert says in notes
    assert not_says not in notes


def test_no_placeholder_is_left_in_the_rules() -> None:
    text = chart_renders.texts(chart_renders.values("monitoring"))[
        "tandem/templates/prometheusrule.yaml"
    ]
    assert 'job="tandem",namespace="tandem"' in text
    assert "@" not in text


def test_kv_over_tcp_is_an_alert_only_where_rdma_is_expected() -> None:
    monitoring = {"prometheusRule": {"enabled": True}}
    path = "tandem/templates/prometheusrule.yaml"
    rdma = {"kvTransfer": {"rdma": RDMA}}
    assert "TandemKvOverTcp" not in chart_renders.texts({"monitoring": monitoring})[path]
    assert "TandemKvOverTcp" in chart_renders.texts({"monitoring": monitoring, **rdma})[path]


def test_an_alert_can_be_left_out_and_rules_of_ones_own_added() -> None:
    group = {"name": "mine", "rules": [{"record": "a:b:c", "expr": "vector(1)"}]}
    rules = {"enabled": True, "disabled": ["TandemQueueGrowing"], "extraGroups": [group]}
    path = "tandem/templates/prometheusrule.yaml"
    text = chart_renders.texts({"monitoring": {"prometheusRule": rules}})[path]
    groups = yaml.safe_load(text)["spec"]["groups"]
    alerts = [rule.get("alert") for each in groups for rule in each["rules"]]
    assert groups[-1] == group
    assert "TandemQueueGrowing" not in alerts
    assert "TandemNoReadyDecode" in alerts


def test_leaving_out_an_alert_that_is_none_is_refused() -> None:
    rules = {"enabled": True, "disabled": ["TandemQueueGrowing", "TandemQueueGrwing"]}
    with pytest.raises(helm_python.HelmRenderError, match="TandemQueueGrwing"):
        chart_renders.texts({"monitoring": {"prometheusRule": rules}})


def test_the_chart_says_where_it_comes_from() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert all(chart[key] for key in ("home", "sources", "maintainers", "icon"))
    *_, name = chart["icon"].partition("/helm/tandem/")
    assert chart["icon"].startswith("https://")
    assert (CHART / name).read_text(encoding="utf-8").startswith("<svg")


def test_the_test_and_the_download_can_be_told_where_to_run() -> None:
    place = {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]}
    model = {"uri": "hf://a/b", "cache": {"type": "pvc"}, "preload": {"enabled": True, **place}}
    texts = chart_renders.texts({"tests": place, "model": model})
    pods = [
        yaml.safe_load(text)
        for path, text in texts.items()
        if "templates/tests/" in path or "model-job" in path
    ]
    specs = [pod.get("spec", {}).get("template", pod)["spec"] for pod in pods]
    assert len(specs) == 2
    assert all({key: spec[key] for key in place} == place for spec in specs)
