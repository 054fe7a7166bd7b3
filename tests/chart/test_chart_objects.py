"""What the objects beside the pods say, and that the copies of a kind say the same for every
component.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import chart_renders
import pods
import pytest
from chart_renders import NAMESPACE, SETS, Manifest
from one_case import one_case
from pods import by_name

COMPONENTS = ("frontend", "router", "prefill", "decode", "worker")
WORKERS = COMPONENTS[2:]
SCALED: dict[str, Any] = {"minReplicas": 2, "maxReplicas": 7}
UP = {"scaleUp": {"stabilizationWindowSeconds": 5}}
"""Laid over the behaviour of each component's own values."""
TARGETS = {
    "frontend": {"targetWaitingBodies": 65},
    "prefill": {"targetWaitingSequences": 62},
    "decode": {"targetOpenSequences": 63, "targetKvUse": 64},
    "worker": {"targetOpenSequences": 63, "targetKvUse": 64},
}
METRICS = {
    "targetWaitingSequences": "tandem_worker_waiting_legs",
    "targetOpenSequences": "tandem_worker_open_legs",
    "targetKvUse": "tandem_worker_kv_used_ratio",
    "targetWaitingBodies": "tandem_frontend_waiting_bodies",
}
LOOKS = {"pollingInterval": 11, "cooldownPeriod": 12, "fallback": {"failureThreshold": 3}}


@cache
def given(name: str) -> dict[str, Any]:
    """The values of a set, with the defaults."""
    return chart_renders.chart().merge_values(dict(chart_renders.values(name)))


def of_all(values: dict[str, Any]) -> dict[tuple[str, str], Manifest]:
    """Kind and component to the object, where every component is given `values`."""
    return of_each(dict.fromkeys(COMPONENTS, values))


def of_each(values: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Manifest]:
    """The same where each component is given its own."""
    worker = {**values.get("worker", {}), "enabled": True}
    monitoring = {"prometheusAddress": "http://prometheus:9090"}
    return {
        (made["kind"], made["metadata"]["labels"]["app.kubernetes.io/component"]): made
        for made in chart_renders.manifests({**values, "worker": worker, "monitoring": monitoring})
    }


def of_scaling(scaling: dict[str, Any]) -> dict[tuple[str, str], Manifest]:
    """Where all components are scaled by `scaling` and by nothing of their own."""
    return of_each(
        {
            component: {"autoscaling": {**dict.fromkeys(TARGETS.get(component, {}), 0), **scaling}}
            for component in COMPONENTS
        }
    )


def alike(objects: dict[tuple[str, str], Manifest], kind: str) -> Manifest:
    """The one object that all components have of a kind, but for their names."""
    texts = {
        json.dumps(objects[kind, component], sort_keys=True)
        .replace(f"tandem-{component}", "tandem-any")
        .replace(f'component": "{component}"', 'component": "any"')
        .replace(',phase=\\"decode\\"', "")
        for component in COMPONENTS
    }
    (text,) = texts
    made: Manifest = json.loads(text)
    return made


# --- scaling, budgets, accounts ------------------------------------------------------------------


def test_an_autoscaler_of_every_component_asks_for_what_its_values_say() -> None:
    scaling = {"type": "hpa", **SCALED, "targetCPUUtilization": 61, "behavior": UP}
    objects = of_scaling(scaling)
    for component in COMPONENTS:
        behavior = objects["HorizontalPodAutoscaler", component]["spec"].pop("behavior")
        assert UP.items() <= behavior.items()
    spec = alike(objects, "HorizontalPodAutoscaler")["spec"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tandem-any"}
    assert spec["scaleTargetRef"] == target
    assert {key: spec[key] for key in SCALED} == SCALED
    (cpu,) = spec["metrics"]
    assert cpu["resource"]["target"] == {"type": "Utilization", "averageUtilization": 61}


def test_keda_asks_of_every_component_what_its_values_say() -> None:
    scaling = {"type": "keda", **SCALED, "targetCPUUtilization": 61, "behavior": UP, "keda": LOOKS}
    objects = of_scaling(scaling)
    for component in COMPONENTS:
        advanced = objects["ScaledObject", component]["spec"].pop("advanced")
        assert UP.items() <= advanced["horizontalPodAutoscalerConfig"]["behavior"].items()
    for component in ("frontend", "router"):  # by default a Deployment
        target = objects["ScaledObject", component]["spec"]["scaleTargetRef"]
        target |= {"apiVersion": "apps/v1", "kind": "Deployment"}
    spec = alike(objects, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"]["name"] == "tandem-any"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 7)
    assert {key: spec[key] for key in LOOKS} == LOOKS
    (cpu,) = spec["triggers"]
    assert (cpu["type"], cpu["metricType"]) == ("cpu", "Utilization")
    assert cpu["metadata"] == {"value": "61"}


@pytest.mark.promise("S5-654")
@one_case("component", TARGETS)
def test_a_component_is_scaled_by_metrics_of_its_own(component: str) -> None:
    own = {**SCALED, "targetCPUUtilization": 0, **TARGETS[component]}
    spec = of_each({component: {"autoscaling": {**own, "type": "hpa"}}})[
        "HorizontalPodAutoscaler", component
    ]
    found = [each["pods"] for each in spec["spec"]["metrics"]]
    of = {"selector": {"matchLabels": {"phase": "decode"}}} if component == "worker" else {}
    values = {"62": "62", "63": "63", "64": "640m", "65": "65"}  # of 1, where the value is of 100
    assert [(each["metric"], each["target"]["averageValue"]) for each in found] == [
        ({"name": METRICS[name], **of}, values[str(value)])
        for name, value in TARGETS[component].items()
    ]
    triggers = of_each({component: {"autoscaling": {**own, "type": "keda"}}})[
        "ScaledObject", component
    ]
    phase = ',phase="decode"' if component == "worker" else ""
    place = f'{{namespace="tandem",pod=~"tandem-{component}-.+"{phase}}}'
    assert [each["metadata"] for each in triggers["spec"]["triggers"]] == [
        {
            "serverAddress": "http://prometheus:9090",
            "query": f"{'100 * ' * (value == 64)}sum({METRICS[name]}{place})",
            "threshold": str(value),
        }
        for name, value in TARGETS[component].items()
    ]


@one_case("budget", [{"maxUnavailable": 3}, {"minAvailable": 2}])
def test_a_budget_never_keeps_a_pod_that_serves_nobody(budget: dict[str, int]) -> None:
    spec = alike(of_all({"podDisruptionBudget": budget}), "PodDisruptionBudget")["spec"]
    assert spec.pop("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    assert spec.pop("selector")["matchLabels"]["app.kubernetes.io/component"] == "any"
    assert spec == budget


@one_case("name", SETS)
def test_budgets_and_scalers_are_there_where_the_values_ask_for_them(name: str) -> None:
    kinds = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}
    made = {
        (each["kind"], each["metadata"]["labels"]["app.kubernetes.io/component"])
        for each in chart_renders.of_set(name)
        if each["kind"] in (*kinds.values(), "PodDisruptionBudget")
    }
    wanted = set()
    for component in COMPONENTS:
        values = given(name)[component]
        if component == "worker" and not values["enabled"]:
            continue
        if values["podDisruptionBudget"]["enabled"]:
            wanted.add(("PodDisruptionBudget", component))
        if values["autoscaling"]["type"] in kinds:
            wanted.add((kinds[values["autoscaling"]["type"]], component))
    assert made == wanted


def test_an_account_bears_the_annotations_by_which_a_cloud_knows_it() -> None:
    account = {"annotations": {"eks.amazonaws.com/role-arn": "arn:x"}}
    made = alike(of_all({"serviceAccount": account}), "ServiceAccount")
    assert made["metadata"]["annotations"] == account["annotations"]
    assert made["automountServiceAccountToken"] is False
    named = of_all({"serviceAccount": {"name": "own"}})
    assert named["ServiceAccount", "router"]["metadata"]["name"] == "own"
    (subject,) = named["RoleBinding", "router"]["subjects"]
    assert subject["name"] == "own"


@one_case("name", SETS)
def test_a_binding_gives_the_role_of_a_component_to_the_account_of_its_pod(name: str) -> None:
    roles, found = by_name(name, "Role"), pods.of_set(name)
    bindings = by_name(name, "RoleBinding")
    assert roles.keys() == bindings.keys()
    for each in bindings.values():
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        role = roles[each["roleRef"]["name"]]
        assert each["roleRef"]["kind"] == "Role"
        assert role["metadata"]["labels"]["app.kubernetes.io/component"] == component
        (subject,) = each["subjects"]
        account = found[component].spec["serviceAccountName"]
        assert subject == {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}


def test_a_claim_for_compiled_kernels_is_its_worker_s_own() -> None:
    caches = {each: {"compileCache": {"size": "9Gi"}} for each in WORKERS}
    objects = of_each({**caches, "model": {"uri": "pvc://m"}})
    claims = {
        component: made["metadata"]["name"]
        for (kind, component), made in objects.items()
        if kind == "PersistentVolumeClaim"
    }
    assert claims == {each: f"tandem-{each}-compile-cache" for each in WORKERS}


# --- who is let in and out ------------------------------------------------------------------------


@one_case("name", SETS)
def test_policies_hold_in_both_directions_and_let_in_who_reads_metrics(name: str) -> None:
    policy = given(name)["networkPolicy"]
    types = ["Ingress", "Egress"] if policy["egress"]["enabled"] else ["Ingress"]
    for each in by_name(name, "NetworkPolicy").values():
        spec = each["spec"]
        assert spec["policyTypes"] == types
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        if component in ("test", "model"):
            assert spec["ingress"] == []
            continue
        (rule,) = [rule for rule in spec["ingress"] if rule.get("ports") == [{"port": "metrics"}]]
        *readers, test = rule["from"]
        assert readers == policy["metricsFrom"]
        labels = test["podSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "test"
        assert labels["app.kubernetes.io/instance"] == chart_renders.RELEASE


@one_case("name", SETS)
def test_policies_let_out_to_names_the_collector_and_what_the_operator_adds(name: str) -> None:
    policy, tracing = given(name)["networkPolicy"], given(name)["tracing"]["otlpEndpoint"]
    dns = [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]
    for each in by_name(name, "NetworkPolicy").values():
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        if component == "tls" or not policy["egress"]["enabled"]:
            continue
        egress = each["spec"]["egress"]
        assert {"ports": dns} in egress
        assert all(rule in egress for rule in policy["egress"]["extra"])
        if tracing:
            assert {"ports": [{"port": 4318}]} in egress


@one_case("name", SETS)
def test_a_pod_that_downloads_is_let_out_to_where_the_model_is(name: str) -> None:
    for pod in pods.of(chart_renders.of_set(name)):
        fetches = [each for each in pod.containers if "fetch-model" in each["command"]]
        policy = by_name(name, "NetworkPolicy").get(f"tandem-{pod.component}")
        if fetches and policy:
            address = given(name)["model"]["hubEndpoint"] or ":443"
            port = int(address.rpartition(":")[2])
            assert {"ports": [{"port": port}]} in policy["spec"]["egress"]


def test_an_aggregated_worker_lets_in_its_routers_alone() -> None:
    spec = by_name("aggregated", "NetworkPolicy")["tandem-worker"]["spec"]
    (rule,) = [rule for rule in spec["ingress"] if rule["ports"] == [{"port": "grpc"}]]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    (out,) = [
        rule
        for rule in by_name("aggregated", "NetworkPolicy")["tandem-router"]["spec"]["egress"]
        if rule["ports"] == [{"port": 7300}]
    ]
    (peer,) = out["to"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"


# --- the way in ----------------------------------------------------------------------------------


def test_an_ingress_and_a_route_lead_to_the_port_of_the_frontend_s_service() -> None:
    values = given("ingress-gateway")["frontend"]
    service = by_name("ingress-gateway", "Service")["tandem-frontend"]["spec"]
    (port,) = service["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 80, "http")
    assert service["type"] == "LoadBalancer"
    assert service["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    made = by_name("ingress-gateway", "Ingress")["tandem-frontend"]
    assert made["metadata"]["annotations"] == values["ingress"]["annotations"]
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == values["ingress"]["tls"]
    (rule,) = made["spec"]["rules"]
    backend = {"service": {"name": "tandem-frontend", "port": {"name": "http"}}}
    (path,) = rule["http"]["paths"]
    assert rule["host"] == "llm.example.com"
    assert path == {"path": "/", "pathType": "Prefix", "backend": backend}
    route = by_name("ingress-gateway", "HTTPRoute")["tandem-frontend"]["spec"]
    assert route["parentRefs"] == values["httpRoute"]["parentRefs"]
    assert route["hostnames"] == values["httpRoute"]["hostnames"]
    (way,) = route["rules"]
    assert way["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    assert way["backendRefs"] == [{"name": "tandem-frontend", "port": 80}]
    assert way["timeouts"] == {"request": "0s"}, "a stream takes as long as the frontend says"


def test_a_node_s_port_is_the_service_s_where_its_type_has_one() -> None:
    def ports(kind: str) -> list[Manifest]:
        service = {"type": kind, "nodePort": 30080, "annotations": {"a": "b"}}
        values = {"frontend": {"service": service}}
        found = pods.made(values, "Service", "tandem-frontend")
        assert found["metadata"]["annotations"] == {"a": "b"}
        return list(found["spec"]["ports"])

    assert [each.get("nodePort") for each in ports("NodePort")] == [30080]
    assert [each.get("nodePort") for each in ports("ClusterIP")] == [None]


def test_cert_manager_is_asked_for_keys_that_change_and_names_that_clients_use() -> None:
    found, values = by_name("tls", "Certificate"), given("tls")
    for name, made in found.items():
        issuers = values["tls"] if name.endswith("-tls") else values["frontend"]["https"]
        assert made["spec"]["issuerRef"] == issuers["certManager"]["issuerRef"]
        assert made["spec"]["privateKey"]["rotationPolicy"] == "Always"
    https = found["tandem-frontend"]["spec"]
    assert https["usages"] == ["server auth"]
    own = [f"tandem-frontend{end}" for end in ("", ".tandem", ".tandem.svc")]
    assert https["dnsNames"] == [*own, "llm.example.com"]
    (mounted,) = [
        each["secret"]["secretName"]
        for each in pods.of_set("tls")["frontend"].spec["volumes"]
        if each["name"] == "https"
    ]
    assert https["secretName"] == mounted


@one_case("name", SETS)
def test_the_test_asks_the_frontend_s_service_and_the_metrics_of_both_phases(name: str) -> None:
    found, services = pods.of_set(name), by_name(name, "Service")
    asked = dict(each.lstrip("-").partition("=")[::2] for each in found["test"].main["args"])
    scheme, _, address = asked["url"].partition("://")
    service, _, port = address.partition(":")
    (labels,) = [each["spec"]["selector"] for key, each in services.items() if key == service]
    assert labels["app.kubernetes.io/component"] == "frontend"
    assert int(port) in [each["port"] for each in services[service]["spec"]["ports"]]
    assert (scheme == "https") is ("https_cert" in found["frontend"].settings)
    for component, worker in zip(("prefill", "decode"), asked["kv"].split(","), strict=True):
        host, _, port = worker.partition(":")
        assert host in services
        ports = {each["name"]: each["containerPort"] for each in found[component].main["ports"]}
        assert int(port) == ports["metrics"]
    keys = [each for each in found["frontend"].main["env"] if each["name"] == "TANDEM_API_KEYS"]
    shown = [each for each in found["test"].main["env"] if each["name"] == "TANDEM_API_KEYS"]
    assert shown == keys
    assert asked.get("api-key-env") == ("TANDEM_API_KEYS" if keys else None)


# --- monitoring ----------------------------------------------------------------------------------


def test_monitors_rules_and_dashboards_are_found_and_say_what_the_values_say() -> None:
    values = given("monitoring")["monitoring"]
    (monitor,) = by_name("monitoring", "PodMonitor").values()
    (rule,) = by_name("monitoring", "PrometheusRule").values()
    for made in (monitor, rule):
        assert made["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == values["podMonitor"]["interval"]
    assert endpoint["scrapeTimeout"] == "10s"
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    for component, pod in pods.of_set("monitoring").items():
        assert labels <= pod.labels.items(), component
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    dashboards = [
        each
        for each in by_name("monitoring", "ConfigMap").values()
        if "dashboard" in each["metadata"]["name"]
    ]
    assert len(dashboards) > 4
    for made in dashboards:
        assert made["metadata"]["namespace"] == "monitoring"
        assert made["metadata"]["annotations"] == {"grafana_folder": "Tandem"}
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_rules_are_written_for_the_objectives_and_runbooks_of_the_values() -> None:
    objectives = {"availability": 0.915, "ttft": 0.925, "itl": 0.935}
    rule = {"enabled": True, "objectives": objectives, "runbookUrl": "https://own.example/books"}
    text = chart_renders.texts({"monitoring": {"prometheusRule": rule}})[
        "tandem/templates/prometheusrule.yaml"
    ]
    assert all(str(each) in text for each in objectives.values())
    assert text.count("runbook_url: https://own.example/books") == text.count("runbook_url:") > 10


def test_scrape_annotations_name_the_port_of_the_metrics() -> None:
    values = {
        "monitoring": {"scrapeAnnotations": True},
        "networkPolicy": {"metricsFrom": [{"podSelector": {}}]},
        "worker": {"enabled": True},
    }
    found = pods.of_values(values)
    for component in (*COMPONENTS, "tls"):
        ports = {each["name"]: each["containerPort"] for each in found[component].main["ports"]}
        said = found[component].annotations
        assert said["prometheus.io/scrape"] == "true", component
        assert said["prometheus.io/path"] == "/metrics", component
        assert said["prometheus.io/port"] == str(ports["metrics"]), component


def test_every_component_logs_and_traces_as_the_values_say() -> None:
    values = {
        "logs": {"format": "console", "level": "debug"},
        "tracing": {"otlpEndpoint": "http://collector:4318", "sampleRatio": 0.25},
        "worker": {"enabled": True},
    }
    found = pods.of_values(values)
    for component in COMPONENTS:
        said = found[component].settings
        assert (said["log_format"], said["log_level"]) == ("console", "debug"), component
        assert (said["otlp_endpoint"], said["trace_sample_ratio"]) == (
            "http://collector:4318",
            0.25,
        )
    assert "--log-format=console" in found["tls"].main["args"]


# --- the model -----------------------------------------------------------------------------------


def test_the_claim_of_a_model_is_kept_and_is_what_its_pods_and_its_job_mount() -> None:
    (claim,) = by_name("hf-model", "PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    cache = given("hf-model")["model"]["cache"]
    assert claim["spec"] == {
        "accessModes": cache["accessModes"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "100Gi"}},
    }
    for component in ("frontend", "prefill", "decode", "model"):
        (volume,) = [
            each["persistentVolumeClaim"]
            for each in pods.of_set("hf-model")[component].spec["volumes"]
            if each["name"] == "model"
        ]
        assert volume["claimName"] == claim["metadata"]["name"]
        assert not volume.get("readOnly"), "each downloads what is not there"
    (job,) = by_name("hf-model", "Job").values()
    assert job["spec"]["backoffLimit"] == 10
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert pods.of_set("bucket")["model"].spec["serviceAccountName"] == "bucket-reader"


def test_pods_that_only_read_a_claim_of_models_mount_it_for_reading() -> None:
    cache = {"type": "pvc", "existingClaim": "models", "readOnly": True}
    for component, pod in pods.of_values({"model": {"uri": "hf://a/b", "cache": cache}}).items():
        mounted = [each for each in pod.spec["volumes"] if each["name"] == "model"]
        assert bool(mounted) is (component in ("frontend", "prefill", "decode"))
        for each in mounted:
            claim = {"claimName": "models", "readOnly": True}
            assert each["persistentVolumeClaim"] == claim
        assert not [each for each in pod.containers if each["name"] == "fetch-model"]


@pytest.mark.parametrize("component", ["prefill", "decode"])
def test_a_worker_of_gpus_is_given_the_network_memory_and_devices_of_its_values(
    component: str,
) -> None:
    pod, values = pods.of_set("gpu-rdma")[component], given("gpu-rdma")[component]
    variables = {each["name"]: each.get("value") for each in pod.main["env"]}
    assert variables["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert variables["UCX_IB_GID_INDEX"] == "3"
    assert pod.annotations["k8s.v1.cni.cncf.io/networks"] == "roce-a@net1"
    assert pod.main["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert pod.spec["securityContext"]["runAsUser"] == 0
    limits = pod.main["resources"]["limits"]
    assert limits["rdma/hca"] == 4
    volumes = {each["name"]: each for each in pod.spec["volumes"]}
    shm = {"medium": "Memory", "sizeLimit": values["shm"]["sizeLimit"]}
    assert volumes["shm"]["emptyDir"] == shm
    mounts = {each["name"]: each["mountPath"] for each in pod.main["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm"
    claims = values["accelerator"]["claims"]
    assert pod.spec.get("resourceClaims", []) == claims
    names = [{"name": each["name"]} for each in claims]
    assert pod.main["resources"].get("claims", []) == names
    assert ("nvidia.com/gpu" in limits) is not bool(claims)
    if values["hugepages"]["size"]:
        page = values["hugepages"]["pageSize"]
        assert limits[f"hugepages-{page}"] == "4Gi"
        assert volumes["hugepages"]["emptyDir"] == {"medium": f"HugePages-{page}"}
        assert mounts["hugepages"] == "/dev/hugepages"
    for key in ("priorityClassName", "runtimeClassName", "tolerations", "nodeSelector"):
        assert pod.spec.get(key, "") == values[key] or not values[key]
