"""Releases with one worker of each phase, and workers that others scale: what each Helm does to
their number, and what the loss of an only worker costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_values import component
from kube import HELM_3, HELMS, Namespace, until
from release import Release

AUTOSCALING = {"type": "hpa", "minReplicas": 1, "maxReplicas": 3}
with_each_helm = pytest.mark.parametrize("few", HELMS, indirect=True)
with_helm = pytest.mark.parametrize("few", ["helm"], indirect=True)


def values(name: str, **changed: dict[str, Any]) -> dict[str, Any]:
    return {
        "fullnameOverride": name,
        "frontend": component(2) | changed.get("frontend", {}),
        "router": component(1),
        "prefill": component(1),
        "decode": component(None) | changed.get("decode", {}),
    }


@pytest.fixture(scope="module")
def few(
    request: pytest.FixtureRequest,
    namespace: Namespace,
    image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    program = HELMS[request.param]
    if not program:
        pytest.skip(f"set {HELM_3} to the program of a Helm 3")
    release = Release(f"few-{request.param}", namespace, image, program)
    release.install(values(release.name), tmp_path_factory.mktemp("values"))
    yield release
    release.uninstall()


@with_each_helm
@pytest.mark.promise("S5-291")
def test_kubectl_scale_an_upgrade_and_a_rollback_go_together(few: Release, tmp_path: Path) -> None:
    few.scale("decode", 2)
    budget = {"podDisruptionBudget": {"minAvailable": 1}}
    few.install(values(few.name, decode=budget), tmp_path, verb="upgrade")
    assert few.wanted("decode") == 2
    few.scale("decode", 1)
    few.settled()
    (only,) = few.ready_pods("decode")
    assert "disruption budget" in few.namespace.evict(only)
    few.rollback()
    assert few.wanted("decode") == 1
    assert few.ready_pods("decode") == [only]


@with_each_helm
@pytest.mark.promise("S5-291")
def test_the_switch_to_autoscaling_takes_no_pod_away(few: Release, tmp_path: Path) -> None:
    before = set(few.ready_pods("frontend"))
    assert len(before) == 2
    switched = values(few.name, frontend={"autoscaling": AUTOSCALING})
    with few.loaded(
        f"two frontends switched to autoscaling, three upgrades and a rollback ({few.name})"
    ) as seen:
        few.install(switched, tmp_path, verb="upgrade")
        assert before <= set(few.ready_pods("frontend"))
        few.scale("frontend", 3)
        few.settled()
        # Of two revisions that leave the number out, or hold the same one.
        few.install(switched, tmp_path, verb="upgrade")
        few.install(switched, tmp_path, verb="upgrade")
        few.rollback()
        assert few.wanted("frontend") == 3
        assert before <= set(few.ready_pods("frontend"))
    seen.whole()


@with_helm
@pytest.mark.promise("S5-292")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_while_the_only_worker_of_a_phase_is_evicted_requests_wait_for_the_next(
    few: Release, phase: str
) -> None:
    (only,) = few.ready_pods(phase)
    frontends = set(few.ready_pods("frontend"))
    with few.loaded(f"the only {phase} pod evicted") as seen:
        assert few.namespace.evict(only) == ""
        until("there is none", lambda: not few.ready_pods(phase))
        assert frontends == set(few.ready_pods("frontend"))
        few.settled()
    seen.whole()


@with_helm
@pytest.mark.promise("S5-292")
def test_an_only_decode_pod_that_is_killed_fails_only_what_ran_on_it(few: Release) -> None:
    with few.loaded("the only decode pod deleted by force") as seen:
        few.namespace.kill(few.ready_pods("decode")[0])
        few.settled()
    seen.lost_only_what_ran()
