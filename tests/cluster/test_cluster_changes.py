"""Changes under load: scaling, restarts, upgrades, rollback and eviction fail no request; a pod
that is killed fails only what it was working on, with a typed error.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from cluster_values import BASE
from kube import until
from release import COMPONENTS, Release


@pytest.mark.promise("S5-121")
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_rolling_restart_under_load_fails_nothing(release: Release, component: str) -> None:
    old = set(release.ready_pods(component))
    with release.loaded(f"restart of every {component}") as seen:
        release.namespace.kubectl("rollout", "restart", f"deployment/{release.name}-{component}")
        release.settled()
    seen.whole()
    assert not old & set(release.ready_pods(component))


def test_scaling_decode_up_and_down_under_load_fails_nothing(release: Release) -> None:
    def routable() -> float:
        return release.metric("router", "tandem_router_routable_workers", phase="decode")

    with release.loaded("`kubectl scale` of decode from 2 to 3 and back") as seen:
        release.scale("decode", 3)
        until("the router uses the third worker", lambda: routable() == 3)
        release.scale("decode", 2)
        until("the router has let it go", lambda: routable() == 2)
        release.settled()
    seen.whole()


@pytest.mark.promise("S5-122")
def test_an_upgrade_of_everything_and_its_rollback_under_load_fail_nothing(
    release: Release, tmp_path: Path
) -> None:
    values = copy.deepcopy(BASE)
    # Another page size is another revision: old and new workers must not pair.
    values["engine"] = {"options": {"page_size": 32}}
    before = {component: set(release.ready_pods(component)) for component in COMPONENTS}
    with release.loaded("upgrade to another revision") as seen:
        release.install(values, tmp_path, verb="upgrade")
        release.settled()
    seen.whole()
    for component in ("prefill", "decode"):
        assert not before[component] & set(release.ready_pods(component))
    assert release.metric("decode", "tandem_kv_transfer_bytes_total") > 0

    with release.loaded("rollback of it") as seen:
        release.rollback()
        release.settled()
    seen.whole()


def test_a_decode_pod_that_is_killed_fails_only_what_ran_on_it(release: Release) -> None:
    with release.loaded("one decode pod of two deleted by force") as seen:
        victim = release.ready_pods("decode")[0]
        release.namespace.kill(victim)
        release.settled()
    seen.lost_only_what_ran()


def test_eviction_drains_one_pod_at_a_time_and_fails_nothing(release: Release) -> None:
    first, second = release.ready_pods("decode")
    with release.loaded("one decode pod of two evicted") as seen:
        assert release.namespace.evict(first) == ""
        assert "disruption budget" in release.namespace.evict(second)
        release.settled()
    seen.whole()
