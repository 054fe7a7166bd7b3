"""What the release's pods may do and whom they may reach: rights, Pod Security, NetworkPolicies."""

from __future__ import annotations

import pytest
from cluster_values import MONITORING
from guest_pods import sleeping
from kube import CHART, Namespace, attempt, until
from release import Release

_CONNECT = """
import socket, sys
with socket.socket() as client:
    client.settimeout(3)
    try:
        client.connect((sys.argv[1], int(sys.argv[2])))
        print("open")
    except OSError as error:
        print("shut", error)
"""
_LIST = """
import json, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
token, here = open(folder + "/token").read(), open(folder + "/namespace").read()
context = ssl.create_default_context(cafile=folder + "/ca.crt")
answers = {}
for path in (
    f"/apis/discovery.k8s.io/v1/namespaces/{here}/endpointslices",
    "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
    f"/api/v1/namespaces/{here}/pods",
    f"/api/v1/namespaces/{here}/secrets",
    f"/api/v1/namespaces/{here}/configmaps",
    "/api/v1/nodes",
):
    url = "https://kubernetes.default.svc" + path
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
    try:
        answers[path] = urllib.request.urlopen(request, context=context, timeout=10).status
    except urllib.error.HTTPError as error:
        answers[path] = error.code
print(json.dumps(list(answers.values())))
"""
PORTS = {
    "frontend": (8000, 8001),
    "router": (7000, 7001),
    "prefill": (7100, 7101),
    "decode": (7200, 7201),
}


@pytest.mark.promise("S5-127", "S6-162")
def test_the_router_may_read_the_endpointslices_of_its_namespace_and_nothing_more(
    release: Release,
) -> None:
    router = release.ready_pods("router")[0]
    assert release.namespace.execute(router, _LIST).strip() == "[200, 403, 403, 403, 403, 403]"


@pytest.mark.promise("S6-162")
@pytest.mark.parametrize("component", ["frontend", "prefill", "decode"])
def test_no_other_pod_holds_a_token(release: Release, component: str) -> None:
    script = "import os; print(os.path.exists('/var/run/secrets/kubernetes.io'))"
    for pod in release.ready_pods(component):
        assert release.namespace.execute(pod, script).strip() == "False"


@pytest.mark.parametrize("component", ["frontend", "prefill", "decode"])
def test_no_other_account_may_read_endpointslices(release: Release, component: str) -> None:
    account = release.pods(component)[0]["spec"]["serviceAccountName"]
    user = f"system:serviceaccount:{release.namespace.name}:{account}"
    answer = attempt(
        "kubectl", "auth", "can-i", "list", "endpointslices", "--as", user,
        "-n", release.namespace.name,
    )  # fmt: skip
    assert answer.stdout.strip() == "no"


def test_the_namespace_refuses_what_the_chart_does_not_need(release: Release) -> None:
    """Else the suite would prove nothing about Pod Security."""
    answer = release.namespace.attempt("run", "rooted", "--image", release.image, "--privileged")
    assert "violates PodSecurity" in answer.stderr


def reachable(release: Release, namespace: Namespace, pod: str) -> dict[str, list[int]]:
    """The ports of each component that a pod of this namespace can connect to."""
    found: dict[str, list[int]] = {}
    for component, ports in PORTS.items():
        address = release.pods(component)[0]["status"]["podIP"]
        answers = {port: namespace.execute(pod, _CONNECT, address, str(port)) for port in ports}
        found[component] = [port for port, answer in answers.items() if answer.startswith("open")]
    return found


@pytest.mark.promise("S5-128", "S6-161")
def test_a_strange_pod_reaches_the_public_port_alone(release: Release) -> None:
    with sleeping(release.namespace, release.image) as stranger:
        found = reachable(release, release.namespace, stranger)
    assert found == {"frontend": [8000], "router": [], "prefill": [], "decode": []}


def test_a_pod_of_the_monitoring_namespace_reaches_every_metrics_port(release: Release) -> None:
    with (
        Namespace.fresh(f"{release.namespace.name}-watch", **MONITORING) as watch,
        sleeping(watch, release.image) as prometheus,
    ):
        found = reachable(release, watch, prometheus)
    assert found == {
        "frontend": [8000, 8001],
        "router": [7001],
        "prefill": [7101],
        "decode": [7201],
    }


@pytest.mark.promise("S5-315")
def test_the_service_of_a_service_monitor_names_the_metrics_port_of_every_pod(
    release: Release,
) -> None:
    """The ServiceMonitor itself needs the Prometheus Operator; its Service does not."""
    values = ["monitoring.serviceMonitor.enabled=true", "networkPolicy.enabled=false"]
    manifest = release.namespace.helm(
        "template", release.name, str(CHART), "--set", ",".join(values),
        "--show-only", "templates/metrics-service.yaml",
    )  # fmt: skip
    metrics = {component: port for component, (_, port) in PORTS.items()} | {"tls": 7401}
    wanted = {
        (pod["status"]["podIP"], port)
        for component, port in metrics.items()
        for pod in release.pods(component)
    }

    def named() -> set[tuple[str, int]]:
        label = f"kubernetes.io/service-name={release.name}-metrics"
        return {
            (endpoint["addresses"][0], port["port"])
            for piece in release.namespace.get("endpointslices", "-l", label)["items"]
            for port in piece["ports"] or ()
            for endpoint in piece["endpoints"] or ()
        }

    release.namespace.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        until("every pod is named", lambda: named() == wanted, seconds=20)
    finally:
        release.namespace.kubectl("delete", "service", f"{release.name}-metrics")


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        ("frontend", "router", 7000, "open"),
        ("router", "prefill", 7100, "open"),
        ("router", "decode", 7200, "open"),
        ("frontend", "prefill", 7100, "shut"),
        ("frontend", "decode", 7200, "shut"),
        ("decode", "router", 7000, "shut"),
        ("prefill", "frontend", 8000, "shut"),
    ],
)
def test_components_reach_what_they_need_and_no_other(
    release: Release, source: str, target: str, port: int, expected: str
) -> None:
    address = release.pods(target)[0]["status"]["podIP"]
    pod = release.ready_pods(source)[0]
    answer = release.namespace.execute(pod, _CONNECT, address, str(port))
    assert answer.split()[0] == expected
