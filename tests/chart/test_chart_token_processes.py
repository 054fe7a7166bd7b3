"""Each token process of a decode worker has a port, by which routers find it and may reach it."""

from __future__ import annotations

import chart_renders
import pods
import pytest
from one_case import one_case
from pods import by_name
from test_chart_settings import settings

pytestmark = pytest.mark.promise("S5-452")
SETS = {"token-processes": 3, "multi-node": 2, "hf-model": 1}
"""Sets of values, and how many processes a worker has with them."""


def ports(name: str) -> set[int]:
    """Those at which a worker's processes listen, by its own settings' rule."""
    return {7200, *(7200 + number for number in range(2, SETS[name] + 1))}


@one_case("name", SETS)
def test_the_worker_is_told_how_many_and_listens_where_its_pod_says(name: str) -> None:
    loaded = settings(name, "decode")
    assert loaded.token_processes == SETS[name]
    further = [loaded.of_process("decode", number) for number in range(2, SETS[name] + 1)]
    listens = {int(each.listen.rpartition(":")[2]) for each in (loaded, *further)}
    assert listens == ports(name)
    named = {
        each["name"]: each["containerPort"] for each in pods.of_set(name)["decode"].main["ports"]
    }
    assert {port for key, port in named.items() if key.startswith("grpc")} == ports(name)


@one_case("name", SETS)
def test_the_service_leads_to_each_and_both_policies_open_it(name: str) -> None:
    spec = by_name(name, "Service")["tandem-decode"]["spec"]
    named = {
        each["name"]: each["containerPort"] for each in pods.of_set(name)["decode"].main["ports"]
    }
    assert {each["port"]: named[each["targetPort"]] for each in spec["ports"]} == {
        port: port for port in ports(name)
    }
    policies = by_name(name, "NetworkPolicy")
    (ingress,) = (
        rule
        for rule in policies["tandem-decode"]["spec"]["ingress"]
        if any(each["port"] == "grpc" for each in rule.get("ports", ()))
    )
    assert {named[each["port"]] for each in ingress["ports"]} == ports(name)
    (egress,) = (
        rule
        for rule in policies["tandem-router"]["spec"].get("egress", ())
        if any(each["port"] == 7200 for each in rule.get("ports", ()))
    )
    assert {each["port"] for each in egress["ports"]} == ports(name)


def test_routers_that_ask_dns_are_told_of_each() -> None:
    values = chart_renders.values("token-processes") | {"router": {"discovery": "dns"}}
    router = pods.of_values(values)["router"].settings
    assert router["decode"] == [
        f"tandem-decode:{port}" for port in sorted(ports("token-processes"))
    ]


def test_the_pod_requests_a_cpu_and_memory_for_each_further_one() -> None:
    def requests(processes: int) -> tuple[int, str]:
        values = {"model": {"uri": "pvc://m"}, "decode": {"tokenProcesses": processes}}
        asked = pods.of_values(values)["decode"].main["resources"]["requests"]
        return asked["cpu"], asked["memory"]

    assert requests(1) == (4, "24Gi")
    assert requests(4) == (7, "30Gi")
