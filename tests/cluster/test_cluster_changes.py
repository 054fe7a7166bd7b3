"""Changes under load: scaling, restarts, upgrades, rollback and eviction fail no request; a pod
that is killed fails only what it was working on, with a typed error.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from cluster_values import BASE
from guest_pods import Load, load
from kube import until
from release import COMPONENTS, MODEL, Release

CLIENTS = 8


def whole(seen: Load) -> None:
    assert seen.failures == {}, seen
    assert seen.answered > CLIENTS


@pytest.mark.promise("S5-121")
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_rolling_restart_under_load_fails_nothing(release: Release, component: str) -> None:
    old = set(release.ready_pods(component))
    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        release.namespace.kubectl("rollout", "restart", f"deployment/{release.name}-{component}")
        release.settled()
    whole(seen)
    assert not old & set(release.ready_pods(component))


def test_scaling_decode_up_and_down_under_load_fails_nothing(release: Release) -> None:
    deployment = f"deployment/{release.name}-decode"

    def routable() -> float:
        return release.metric("router", "tandem_router_routable_workers", phase="decode")

    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        release.namespace.kubectl("scale", deployment, "--replicas=3")
        until("the router uses the third worker", lambda: routable() == 3)
        release.namespace.kubectl("scale", deployment, "--replicas=2")
        until("the router has let it go", lambda: routable() == 2)
        release.settled()
    whole(seen)


@pytest.mark.promise("S5-122")
def test_an_upgrade_of_everything_and_its_rollback_under_load_fail_nothing(
    release: Release, tmp_path: Path
) -> None:
    values = copy.deepcopy(BASE)
    # Another page size is another revision: old and new workers must not pair.
    values["engine"] = {"options": {"page_size": 32}}
    before = {component: set(release.ready_pods(component)) for component in COMPONENTS}
    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        release.install(values, tmp_path, verb="upgrade")
        release.settled()
    whole(seen)
    for component in ("prefill", "decode"):
        assert not before[component] & set(release.ready_pods(component))
    assert release.metric("decode", "tandem_kv_transfer_bytes_total") > 0

    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        release.namespace.helm("rollback", release.name, "--wait", "--timeout", "5m")
        release.settled()
    whole(seen)


def test_a_decode_pod_that_is_killed_fails_only_what_ran_on_it(release: Release) -> None:
    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        victim = release.ready_pods("decode")[0]
        release.namespace.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        release.settled()
    assert seen.failures is not None
    assert sum(seen.failures.values()) <= CLIENTS, seen
    assert all("error event: worker_lost" in failure for failure in seen.failures), seen
    assert seen.answered > CLIENTS


def test_eviction_drains_one_pod_at_a_time_and_fails_nothing(release: Release) -> None:
    def evict(pod: str) -> str:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": release.namespace.name},
        }
        path = f"/api/v1/namespaces/{release.namespace.name}/pods/{pod}/eviction"
        answer = release.namespace.attempt(
            "create", "--raw", path, "-f", "-", stdin=json.dumps(body)
        )
        return answer.stderr

    first, second = release.ready_pods("decode")
    with load(release.namespace, release.image, release.url, MODEL, clients=CLIENTS) as seen:
        assert evict(first) == ""
        assert "disruption budget" in evict(second)
        release.settled()
    whole(seen)
