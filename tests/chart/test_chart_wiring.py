"""Services, policies, budgets and scalers lead to the pods, and to the ports, that they mean."""

from __future__ import annotations

import inspect
import re

import chart_renders
import pods
import promql_parser
import pytest
from chart_renders import SETS, Manifest
from one_case import one_case
from pods import by_name

from monitoring import registries
from tandem_router.discovery import slice_watch

COMPONENTS = ("frontend", "router", "prefill", "decode")
WITHOUT_POLICIES = {
    name
    for name in SETS
    if not chart_renders.values(name).get("networkPolicy", {}).get("enabled", True)
}
ONLY_PEERS = {
    # Component -> port to the components that may connect to it; of "" every port.
    "frontend": {"metrics": {"test"}, "http": {"*"}},
    "router": {"metrics": {"test"}, "grpc": {"frontend"}},
    "prefill": {"metrics": {"test"}, "grpc": {"router"}, "": {"decode"}},
    "decode": {"metrics": {"test"}, "grpc": {"router"}, "": {"prefill"}},
    "worker": {"metrics": {"test"}, "grpc": {"router"}},
}


@one_case("name", SETS)
def test_selectors_are_labels_of_the_pods_they_mean(name: str) -> None:
    found = pods.of_set(name)
    for each in chart_renders.of_set(name):
        spec = each.get("spec", {})
        selector = {
            "Deployment": lambda spec=spec: spec["selector"]["matchLabels"],
            "Service": lambda spec=spec: spec["selector"],
            "NetworkPolicy": lambda spec=spec: spec["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec=spec: spec["selector"]["matchLabels"],
        }.get(each["kind"])
        if selector is not None:
            component = each["metadata"]["labels"]["app.kubernetes.io/component"]
            meant = COMPONENTS if component == "metrics" else (component,)
            assert all(selector().items() <= found[each].labels.items() for each in meant)
            assert "app.kubernetes.io/component" in selector() or len(meant) > 1


@one_case("name", SETS)
def test_services_lead_to_ports_that_pods_have(name: str) -> None:
    found = pods.of_set(name)
    for service in by_name(name, "Service").values():
        component = service["spec"]["selector"].get("app.kubernetes.io/component")
        for meant in (component,) if component else COMPONENTS:
            ports = {each["name"] for each in found[meant].main["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@one_case("component", ["prefill", "decode"])
def test_workers_have_a_headless_service_with_the_port_that_discovery_asks_for(
    component: str,
) -> None:
    spec = by_name("default", "Service")[f"tandem-{component}"]["spec"]
    assert spec["clusterIP"] == "None"
    assert [port["name"] for port in spec["ports"]] == ["grpc"]


def test_dns_names_workers_before_a_router_uses_them() -> None:
    """They are ready only then."""
    services = {
        service["metadata"]["labels"]["app.kubernetes.io/component"]: service["spec"]
        for service in by_name("restricted", "Service").values()
    }
    for component in ("prefill", "decode"):
        assert services[component]["publishNotReadyAddresses"] is True


@pytest.mark.promise("S5-314")
@one_case("name", SETS)
def test_every_pod_has_a_policy_of_its_own(name: str) -> None:
    """Where a namespace denies all by default, a pod without one reaches nobody."""
    policies = by_name(name, "NetworkPolicy").values()
    selectors = [each["spec"]["podSelector"]["matchLabels"] for each in policies]
    for pod in pods.of(chart_renders.of_set(name)):
        meant = [each for each in selectors if each.items() <= pod.labels.items()]
        assert len(meant) == (0 if name in WITHOUT_POLICIES else 1), pod.owner


@pytest.mark.promise("S5-314")
def test_the_test_reaches_what_it_asks_and_nothing_else() -> None:
    def asked(values: dict[str, object]) -> list[tuple[set[str], set[int]]]:
        policy = pods.made(values, "NetworkPolicy", "tandem-test")
        assert policy["spec"]["ingress"] == []
        return [
            (_peers(rule, "to"), {port["port"] for port in rule["ports"]})
            for rule in policy["spec"]["egress"]
        ]

    workers = [({"prefill"}, {7101}), ({"decode"}, {7201}), ({"*"}, {53})]
    assert asked({}) == [({"frontend"}, {8000}), *workers]
    assert asked({"tests": {"url": "https://llm.example:8443"}}) == [({"*"}, {8443}), *workers]


@pytest.mark.promise("S5-314")
def test_the_download_before_others_reaches_the_hub_and_the_proxy() -> None:
    policy = by_name("hf-model", "NetworkPolicy")["tandem-model"]["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {8443, 3128, 53}
    assert policy["ingress"] == []


@pytest.mark.promise("S5-128", "S6-161")
@one_case("component", COMPONENTS)
def test_every_port_is_open_to_those_who_need_it_and_to_nobody_else(component: str) -> None:
    policy = by_name("default", "NetworkPolicy")[f"tandem-{component}"]["spec"]
    opened: dict[str, set[str]] = {}
    for rule in policy["ingress"]:
        for port in rule.get("ports", [{"port": ""}]):
            opened.setdefault(port["port"], set()).update(_peers(rule))
    assert opened == ONLY_PEERS[component]
    ports = {port["name"] for port in pods.of_set("default")[component].main["ports"]}
    assert opened.keys() - {""} <= ports
    assert ports <= opened.keys() or "" in opened


def test_a_frontend_reaches_the_routers_that_it_joins_and_a_router_lets_in_who_may_join_it() -> (
    None
):
    policies = by_name("several-models", "NetworkPolicy")
    egress = policies["tandem-frontend"]["spec"]["egress"]
    anywhere = [port["port"] for rule in egress if "to" not in rule for port in rule["ports"]]
    assert anywhere == [7000, 7000, 443, 53, 53]
    (rule, _) = policies["tandem-router"]["spec"]["ingress"]
    own, joins = rule["from"]
    assert own["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "tandem"
    assert joins["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "chat"}


def test_what_a_policy_lets_out_the_other_lets_in() -> None:
    policies = by_name("default", "NetworkPolicy")
    for component in (*COMPONENTS, "test"):
        for rule in policies[f"tandem-{component}"]["spec"]["egress"]:
            for peer in _peers(rule, "to") - {"*"}:
                numbers = {port["port"] for port in rule.get("ports", ())}
                other = pods.of_set("default")[peer].main["ports"]
                names = {each["name"] for each in other if each["containerPort"] in numbers}
                allowed = [ONLY_PEERS[peer][name] for name in names or {""}]
                assert any(component in each or "*" in each for each in allowed)


def test_a_list_of_ports_that_is_emptied_opens_none() -> None:
    """A rule without ports and without peers would let everything out."""
    egress: dict[str, list[int]] = {"dnsPorts": [], "apiPorts": []}
    for each in chart_renders.manifests({"networkPolicy": {"egress": egress}}):
        if each["kind"] == "NetworkPolicy":
            assert all(rule.get("to") for rule in each["spec"]["egress"]), each["metadata"]["name"]


@pytest.mark.promise("S6-161")
def test_named_peers_are_the_only_ones_beside_the_test() -> None:
    policies = by_name("restricted", "NetworkPolicy").values()
    frontend = next(each for each in policies if each["metadata"]["name"].endswith("-frontend"))
    assert frontend["spec"]["ingress"][0]["from"][0] == {
        "namespaceSelector": {"matchLabels": {"team": "clients"}}
    }
    assert [_peers(rule) for rule in frontend["spec"]["ingress"]] == [{"*", "test"}, {"*", "test"}]


@pytest.mark.promise("S5-127")
def test_the_router_asks_the_api_for_what_it_is_allowed_and_for_nothing_else() -> None:
    source = inspect.getsource(slice_watch)
    calls = set(re.findall(r"\bapi\.(\w+)", source))
    assert calls == {"list_namespaced_endpoint_slice"}
    verbs = {"list", *(["watch"] if "watch=True" in source else [])}
    (rule,) = by_name("default", "Role")["tandem-router"]["rules"]
    assert rule["apiGroups"] == ["discovery.k8s.io"]
    assert rule["resources"] == ["endpointslices"]
    assert set(rule["verbs"]) == verbs


def test_dns_needs_no_rights() -> None:
    for kind in ("Role", "RoleBinding"):
        (name,) = by_name("restricted", kind)
        assert name.endswith("-tls")


@one_case("name", SETS)
def test_who_is_scaled_has_no_replicas_of_its_own(name: str) -> None:
    scalers: list[Manifest] = [
        *by_name(name, "HorizontalPodAutoscaler").values(),
        *by_name(name, "ScaledObject").values(),
    ]
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in scalers]
    assert len(set(scaled)) == len(scaled)
    workloads = by_name(name, "Deployment") | by_name(name, "LeaderWorkerSet")
    for each in scalers:
        target = each["spec"]["scaleTargetRef"]
        workload = workloads[target["name"]]
        meant = (target.get("apiVersion", "apps/v1"), target.get("kind", "Deployment"))
        assert meant == (workload["apiVersion"], workload["kind"])
    for workload in workloads.values():
        scales = workload["metadata"]["name"] in scaled
        assert ("replicas" in workload["spec"]) is not scales


@pytest.mark.promise("S5-315")
def test_a_service_monitor_reads_every_pod_as_the_pod_monitor_does() -> None:
    service = by_name("hpa", "Service")["tandem-metrics"]
    made = by_name("hpa", "ServiceMonitor")["tandem-metrics"]
    other = by_name("monitoring", "PodMonitor")["tandem-metrics"]["spec"]
    monitor = made["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert made["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    (port,) = service["spec"]["ports"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] == port["name"]
    assert monitor["jobLabel"] == other["jobLabel"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == chart_renders.RELEASE
    assert monitor["namespaceSelector"] == other["namespaceSelector"]
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.promise("S5-315")
def test_the_service_of_the_frontend_takes_what_clouds_and_clusters_ask_for() -> None:
    service = by_name("ingress-gateway", "Service")["tandem-frontend"]
    wanted = {
        "loadBalancerClass": "example.com/internal",
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Cluster",
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv6", "IPv4"],
    }
    assert wanted.items() <= service["spec"].items()
    assert service["metadata"]["labels"]["exposed"] == "true"
    inside = {
        "frontend": {"service": {"externalTrafficPolicy": "Local", "loadBalancerClass": "a/b"}}
    }
    spec = pods.made(inside, "Service", "tandem-frontend")["spec"]
    assert not {"externalTrafficPolicy", "loadBalancerClass"} & spec.keys()


@pytest.mark.promise("S5-315")
@one_case("component", [*COMPONENTS, "worker"])
def test_rollouts_probes_and_names_are_a_platforms_to_set(component: str) -> None:
    dns = {"nameservers": ["10.0.0.10"]}
    aliases = [{"ip": "10.1.2.3", "hostnames": ["hub.internal"]}]
    values = {
        "minReadySeconds": 7,
        "revisionHistoryLimit": 3,
        "workload": {"annotations": {"owner": "team"}},
        "probes": {
            "startup": {"timeoutSeconds": 9},
            "liveness": {"failureThreshold": 12},
            "readiness": {"periodSeconds": 4},
        },
        "dnsPolicy": "None",
        "dnsConfig": dns,
        "hostAliases": aliases,
        "tmp": {"sizeLimit": "2Gi"},
    }
    if component == "worker":
        values["enabled"] = True
    made = pods.made({component: values}, "Deployment", f"tandem-{component}")
    pod = pods.of_values({component: values})[component]
    assert made["metadata"]["annotations"] == {"owner": "team"}
    assert (made["spec"]["minReadySeconds"], made["spec"]["revisionHistoryLimit"]) == (7, 3)
    assert pod.main["startupProbe"]["timeoutSeconds"] == 9
    assert pod.main["livenessProbe"]["failureThreshold"] == 12
    assert pod.main["livenessProbe"]["terminationGracePeriodSeconds"] == 30
    assert pod.main["readinessProbe"]["periodSeconds"] == 4
    asked = {"dnsPolicy": "None", "dnsConfig": dns, "hostAliases": aliases}
    assert asked.items() <= pod.spec.items()
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}} in pod.spec["volumes"]


def test_workers_in_the_node_s_network_still_find_services_unless_told_otherwise() -> None:
    def policy(own: dict[str, object]) -> object:
        values = {
            "global": {"podSecurity": "privileged"},
            "kvTransfer": {"rdma": {"enabled": True, "hostNetwork": True}},
            "networkPolicy": {"enabled": False},
            "decode": own,
        }
        return pods.of_values(values)["decode"].spec["dnsPolicy"]

    assert policy({}) == "ClusterFirstWithHostNet"
    assert policy({"dnsPolicy": "Default"}) == "Default"


@one_case("phase", ["prefill", "decode"])
def test_keda_asks_for_metrics_that_workers_have(phase: str) -> None:
    values = {
        "monitoring": {"prometheusAddress": "http://prometheus:9090"},
        phase: {"autoscaling": {"type": "keda"}},
    }
    scaler = pods.made(values, "ScaledObject", f"tandem-{phase}")
    known = {sample.name for family in registries.families() for sample in family.samples}
    for trigger in scaler["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        promql_parser.parse(query)
        names = set(re.findall(r"tandem_\w+(?={)", query))
        assert names
        assert names <= known


@pytest.mark.parametrize(
    ("values", "surge"),
    [
        ({}, 1),
        ({"model": {"uri": "pvc://m"}}, 1),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2}}, 0),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2, "rollout": "surge"}}, 1),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2}, "engine": {"device": "cpu"}}, 1),
        ({"decode": {"rollout": "replace"}}, 0),
    ],
)
def test_a_rollout_takes_a_spare_accelerator_only_where_it_must(
    values: dict[str, object], surge: int
) -> None:
    deployment = pods.made(values, "Deployment", "tandem-decode")
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": surge, "maxUnavailable": 1 - surge}


def _peers(rule: Manifest, key: str = "from") -> set[str]:
    """Components; "*" for anybody, or for a peer that is no component."""
    peers = rule.get(key, [{}])
    return {
        each.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component", "*")
        for each in peers
    }


@pytest.mark.promise("S5-282")
@pytest.mark.parametrize(
    ("router", "several"),
    [
        ({"replicas": 1}, False),
        ({"replicas": 0}, False),
        ({"replicas": 3}, True),
        ({"replicas": None}, True),
        ({"replicas": 1, "autoscaling": {"type": "hpa", "maxReplicas": 3}}, True),
        ({"replicas": 3, "autoscaling": {"type": "hpa", "maxReplicas": 1}}, False),
    ],
)
def test_frontends_find_each_of_several_routers_that_is_ready(
    router: dict[str, object], several: bool
) -> None:
    """One router's Service leads to the next one at once; DNS may be some seconds behind."""
    objects = chart_renders.manifests({"router": router})
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    text = pods.of_values({"router": router})["frontend"].carried("settings")["tandem.yaml"]
    address = "dns://tandem-router-each:7000" if several else "tandem-router:7000"
    assert f"router: {address}\n" in text
    headless = rendered.get(("Service", "tandem-router-each"))
    assert (headless is not None) is several
    if headless is not None:
        assert headless["spec"]["clusterIP"] == "None"
        assert not headless["spec"].get("publishNotReadyAddresses")
        assert (
            headless["spec"]["selector"]
            == (rendered["Service", "tandem-router"]["spec"]["selector"])
        )
