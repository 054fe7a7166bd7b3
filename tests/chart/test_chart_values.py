"""values.yaml is the manual: it is complete, what follows from it is up to date, and what cannot
work is refused, saying what to change.
"""

from __future__ import annotations

from typing import Any

import chart_renders
import chart_values
import generate_chart
import helm_python
import pytest
import yaml
from chart_renders import CHART, ROOT

GPU = {"model": {"uri": "pvc://m"}}
PHASES = ("prefill", "decode")
RDMA = {"enabled": True}
NODES = {**GPU, "engine": {"tensorParallel": 2}, "decode": {"workload": {"nodes": 2}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name-of-no-service": (
        {"fullnameOverride": "My_Bad"},
        'no Service can be called "My_Bad", which every name here begins with: set fullname',
    ),
    "own-label": (
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        "the chart sets the label app.kubernetes.io/name itself: leave it out of commonLabels",
    ),
    "own-label-of-pods": (
        {"router": {"podLabels": {"helm.sh/chart": "x"}}},
        "the chart sets the label helm.sh/chart itself: leave it out of router.podLabels",
    ),
    "more-code-than-a-pod-carries": (
        {"code": {"files": {"a.py": "#" * 204_800}}},
        "put the code into an image (code.image) or a claim (code.existingClaim)",
    ),
    "more-settings-than-a-pod-carries": (
        {"router": {"config": {"expected_models": ["m" * 204_800]}}},
        "settings and code of router are",
    ),
    "limits-of-keys-shared-by-nobody-knows-how-many": (
        {"frontend": {"replicas": None, "apiKeysFile": {"existingSecret": "s"}}},
        "say how many, in frontend.replicas or frontend.autoscaling.minReplicas",
    ),
    "limits-of-mounted-keys-shared-by-nobody-knows-how-many": (
        {"frontend": {"replicas": None, "apiKeysFile": {"path": "/mnt/keys.jsonl"}}},
        "say how many, in frontend.replicas or frontend.autoscaling.minReplicas",
    ),
    "ipc-lock": (
        {"kvTransfer": {"rdma": {**RDMA, "ipcLock": True}}},
        "kvTransfer.rdma.ipcLock needs a namespace that allows it: set global.podSecurity",
    ),
    "host-network": (
        {"kvTransfer": {"rdma": {**RDMA, "hostNetwork": True}}},
        "kvTransfer.rdma.hostNetwork needs a namespace that allows it: set global.podSecurity",
    ),
    "host-network-with-policies": (
        {
            "global": {"podSecurity": "privileged"},
            "kvTransfer": {"rdma": {**RDMA, "hostNetwork": True}},
        },
        "set networkPolicy.enabled=false with kvTransfer.rdma.hostNetwork",
    ),
    "no-model": (
        {"engine": {"type": "sglang"}},
        "engine.type=sglang needs a model, which its image does not hold: set model.uri",
    ),
    "model-on-the-node": (
        {"model": {"uri": "file:///models/m"}},
        "a model.uri of file:// is a folder of the node: set global.podSecurity=privileged",
    ),
    "cache-on-the-node": (
        {"model": {"uri": "hf://a/b", "cache": {"type": "hostPath"}}},
        "model.cache.type=hostPath is a folder of the node: set global.podSecurity=privileged",
    ),
    "rdma-without-devices": (
        {"kvTransfer": {"requireRdma": True}},
        "kvTransfer.requireRdma needs devices: set kvTransfer.rdma.enabled=true",
    ),
    "rdma-over-tcp": (
        {"kvTransfer": {"requireRdma": True, "rdma": RDMA, "ucx": {"tls": "rc,tcp"}}},
        "kvTransfer.ucx.tls allows TCP, which kvTransfer.requireRdma forbids",
    ),
    "preload-to-nowhere": (
        {"model": {"uri": "hf://a/b", "preload": {"enabled": True}}},
        "it needs a model.uri of hf://, s3:// or gs:// and model.cache.type=pvc",
    ),
    "preload-of-a-claim": (
        {"model": {**GPU["model"], "cache": {"type": "pvc"}, "preload": {"enabled": True}}},
        "it needs a model.uri of hf://, s3:// or gs:// and model.cache.type=pvc",
    ),
    "empty-cache": (
        {"model": {"uri": "hf://a/b", "cache": {"readOnly": True}}},
        "a read-only emptyDir stays empty: set model.cache.readOnly=false",
    ),
    "claim-that-nothing-fills": (
        {"model": {"uri": "hf://a/b", "cache": {"type": "pvc", "readOnly": True}}},
        "nothing fills the claim that model.cache makes: set model.preload.enabled=true",
    ),
    "phases-that-differ": (
        {"prefill": {"engineOptions": {"page_size": 32}}},
        "prefill and decode would never pair: set page_size in engine.options, for both",
    ),
    "nodes-as-server-args": (
        {"engine": {"options": {"server_args": '{"nnodes": 2}'}}},
        "leave nnodes, node_rank and dist_init_addr out of server_args, and set prefill.workload",
    ),
    "nodes-of-a-simulation": (
        {"decode": {"workload": {"nodes": 2}}, "engine": {"tensorParallel": 2}},
        "decode.workload.nodes: a simulated worker runs on one node: set model.uri",
    ),
    "nodes-that-share-unequally": (
        {**GPU, "engine": {"tensorParallel": 8}, "prefill": {"workload": {"nodes": 3}}},
        "prefill.workload.nodes cannot share engine.tensorParallel equally",
    ),
    "two-certificates": (
        {"tls": {"enabled": True, "existingSecret": "a", "certManager": {"enabled": True}}},
        "tls has two sources of its certificate",
    ),
    "two-certificates-outside": (
        {"frontend": {"https": {"existingSecret": "a", "certManager": {"enabled": True}}}},
        "frontend.https has two sources of its certificate",
    ),
    "no-issuer": (
        {"tls": {"enabled": True, "certManager": {"enabled": True}}},
        "tls.certManager needs an issuer: set tls.certManager.issuerRef.name",
    ),
    "short-lived-ca": (
        {"tls": {"job": {"certificateDays": 90, "caDays": 60}}},
        "tls.job.certificateDays is above tls.job.caDays",
    ),
    "metrics-for-nobody": (
        {"monitoring": {"podMonitor": {"enabled": True}}},
        "name Prometheus' namespace in networkPolicy.metricsFrom",
    ),
    "metrics-twice": (
        {"monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        "monitoring.podMonitor and monitoring.serviceMonitor would both scrape every pod",
    ),
    "keys-twice": (
        {"frontend": {"apiKeysFile": {"existingSecret": "keys", "path": "/keys/keys.jsonl"}}},
        "frontend.apiKeysFile has two sources: leave existingSecret or path empty",
    ),
    "metrics-for-no-scraper": (
        {"monitoring": {"scrapeAnnotations": True}},
        "name Prometheus' namespace in networkPolicy.metricsFrom",
    ),
    "unused-certificate": (
        {"tls": {"enabled": False, "existingSecret": "a"}},
        "tls has a certificate that nothing uses: set tls.enabled=true",
    ),
    "no-host": (
        {"frontend": {"ingress": {"enabled": True}}},
        "frontend.ingress needs a host: set frontend.ingress.hosts",
    ),
    "no-gateway": (
        {"frontend": {"httpRoute": {"enabled": True}}},
        "frontend.httpRoute needs a Gateway: set frontend.httpRoute.parentRefs",
    ),
    "router-without-account": (
        {"router": {"serviceAccount": {"create": False}}},
        "set router.serviceAccount.name, or router.discovery=dns",
    ),
    "shares-without-ready-routers": (
        {"router": {"decodeRouters": 2, "discovery": "dns"}},
        "router.decodeRouters asks which routers are ready: set router.discovery=kubernetes",
    ),
    "bounds-crossed": (
        {"frontend": {"autoscaling": {"type": "hpa", "minReplicas": 9, "maxReplicas": 2}}},
        "frontend.autoscaling.minReplicas is above maxReplicas: lower it",
    ),
    "nothing-to-scale-by": (
        {"frontend": {"autoscaling": {"type": "hpa", "targetCPUUtilization": 0}}},
        "frontend.autoscaling has nothing to go by: set one of its targets above 0",
    ),
    "nothing-seen": (
        {"prefill": {"autoscaling": {"type": "hpa", "minReplicas": 0}}},
        "prefill.autoscaling.minReplicas=0 needs somebody who sees that requests wait",
    ),
    "one-phase-of-nothing": (
        {"decode": {"autoscaling": {"type": "keda", "minReplicas": 0}}},
        "set prefill.autoscaling.minReplicas=0 too",
    ),
    "aggregated-nothing-seen": (
        {"worker": {"enabled": True, "autoscaling": {"type": "hpa", "minReplicas": 0}}},
        "worker.autoscaling.minReplicas=0 needs somebody who sees that requests wait",
    ),
    "aggregated-nothing-in-no-time": (
        {"worker": {"enabled": True, "autoscaling": {"type": "keda", "minReplicas": 0}}},
        "set router.config.pair_wait_seconds to longer than a start takes",
    ),
    "nothing-in-no-time": (
        {phase: {"autoscaling": {"type": "keda", "minReplicas": 0}} for phase in PHASES},
        "set router.config.pair_wait_seconds to longer than a start takes",
    ),
    "share-of-nothing": (
        {"router": {"autoscaling": {"type": "hpa"}, "resources": {"requests": {"cpu": None}}}},
        "router.autoscaling.targetCPUUtilization is a share of the request: set router.resources",
    ),
    "keda-without-prometheus": (
        {"decode": {"autoscaling": {"type": "keda"}}},
        "decode.autoscaling.type=keda asks Prometheus: set monitoring.prometheusAddress",
    ),
}
VALUES = list(chart_values.read(CHART / "values.yaml"))
NULLABLE = {each.path for each in VALUES if "null" in each.schema.get("type", ())}
UNKNOWN: dict[str, dict[str, Any]] = {
    "top": {"replicas": 1},
    "section": {"frontend": {"replica": 1}},
    "deeper": {"frontend": {"service": {"ports": 1}}},
    "type": {"frontend": {"replicas": "two"}},
    "negative": {"decode": {"replicas": -1}},
    "enum": {"engine": {"type": "vllm"}},
    "digest": {"image": {"digest": "sha256:short"}},
    "uri": {"model": {"uri": "Qwen/Qwen3-8B"}},
    "hub": {"model": {"uri": "hf://Qwen"}},
    "bucket": {"model": {"uri": "s3://models"}},
    "collector": {"tracing": {"otlpEndpoint": "collector:4318"}},
    "setting": {"frontend": {"config": {"max_open_request": 1}}},
    "setting-of-another": {"router": {"config": {"max_body_bytes": 1}}},
    "setting-type": {"router": {"config": {"max_queue": "many"}}},
    "setting-of-the-chart": {"prefill": {"config": {"listen": "0.0.0.0:1"}}},
    "shares-as-a-setting": {"router": {"config": {"decode_routers": 2}}},
    "nodes-as-a-setting": {"prefill": {"config": {"nodes": 2}}},
    "option": {"engine": {"options": {"pagesize": 1}}},
    "option-of-the-chart": {"prefill": {"engineOptions": {"bootstrap_port": 1}}},
    "port": {"frontend": {"service": {"port": 99999}}},
    "node-port": {"frontend": {"service": {"nodePort": -1}}},
    "port-of-a-list": {"networkPolicy": {"egress": {"dnsPorts": ["53"]}}},
    "address": {"global": {"listen": "::"}},
    "name-in-labels": {"nameOverride": "My Name"},
    "label": {"commonLabels": {"team": 7}},
    "pod-label": {"decode": {"podLabels": {"team": 7}}},
    "annotation": {"frontend": {"service": {"annotations": {"a": True}}}},
    "file": {"code": {"files": {"a.py": 1}}},
    "variable": {"frontend": {"extraEnv": ["A=1"]}},
    "variable-value": {"frontend": {"extraEnv": [{"name": "A", "value": 1}]}},
    "volume": {"prefill": {"extraVolumes": [{"emptyDir": {}}]}},
    "pull-secret": {"global": {"imagePullSecrets": ["pull"]}},
    "toleration": {"tests": {"tolerations": ["gpu"]}},
    "host": {"frontend": {"ingress": {"hosts": [{"host": "a"}]}}},
    "resource": {"prefill": {"resources": {"limit": {"cpu": 1}}}},
    "frontend-of-nothing": {"frontend": {"autoscaling": {"type": "keda", "minReplicas": 0}}},
    "family": {"frontend": {"service": {"ipFamilies": ["IPv5"]}}},
    "traffic-policy": {"frontend": {"service": {"externalTrafficPolicy": "local"}}},
    "dns-policy": {"router": {"dnsPolicy": "cluster"}},
    "host-alias": {"router": {"hostAliases": ["10.0.0.1 hub"]}},
    "quantity": {"decode": {"shm": {"sizeLimit": "8 GiB"}}},
    "objective": {"monitoring": {"prometheusRule": {"objectives": {"itl": 99}}}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_its_mend(case: str) -> None:
    values, sentence = REFUSED[case]
    with pytest.raises(helm_python.HelmRenderError) as caught:
        chart_renders.texts(values)
    assert sentence in str(caught.value)


def test_every_refusal_has_a_test() -> None:
    text = (CHART / "templates" / "validate.yaml").read_text(encoding="utf-8")
    assert text.count("{{- fail ") == len(REFUSED) - 5  # five sentences have two ways to them


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_value_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart_renders.texts(UNKNOWN[case])


@pytest.mark.promise("S5-312")
@pytest.mark.parametrize("path", [each.path for each in VALUES], ids=".".join)
def test_a_null_is_refused_by_name_unless_it_has_a_meaning(path: tuple[str, ...]) -> None:
    *above, name = path
    given: Any = {name: None}
    for key in reversed(above):
        given = {key: given}
    if path in NULLABLE:
        chart_renders.texts(given)
        return
    with pytest.raises(helm_python.HelmValuesError) as caught:
        chart_renders.texts(given)
    assert f"at '{'/'.join(['', *above])}': missing property '{name}'" in str(caught.value)


@pytest.mark.promise("S5-312")
@pytest.mark.parametrize("release", ["my.release", "1tandem"])
def test_a_release_whose_name_no_service_can_have_is_refused(release: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match="no Service can be called"):
        chart_renders.chart().render({}, name=release, namespace="tandem")
    chart_renders.chart().render({"fullnameOverride": "fine"}, name=release, namespace="tandem")


def test_what_the_values_imply_is_up_to_date() -> None:
    """The schema, the README, deploy/ and the golden renders: `make chart` writes them."""
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate_chart.outputs()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == []


def test_nothing_generated_is_left_over() -> None:
    made = {path for path, _ in generate_chart.outputs()}
    for folder in (generate_chart.DEPLOY, generate_chart.GOLDEN):
        assert set(folder.iterdir()) <= made


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
