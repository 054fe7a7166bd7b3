"""A rollout that breaks hurts nobody: pods of the revision before find their own settings and code
when they start again, whoever applies the chart.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from cluster_values import BASE, component
from kube import Namespace, until
from release import Release

_CARRIED = """
print(open("/etc/tandem/tandem.yaml").read(), open("/code/files/cluster_guard.py").read())
"""


def broken() -> dict[str, Any]:
    """Values whose workers cannot start: their hook is not there."""
    values = copy.deepcopy(BASE)
    values["code"] = {"files": {"another.py": "ANOTHER = 1\n"}}
    return values


def crashed(release: Release, component: str) -> bool:
    return any(
        status["restartCount"]
        for pod in release.pods(component)
        for status in pod["status"].get("containerStatuses", ())
    )


@pytest.mark.promise("S5-290")
def test_an_old_pod_killed_amid_a_broken_rollout_comes_back_as_it_was(
    release: Release, tmp_path: Path
) -> None:
    before = set(release.ready_pods("decode"))
    carried = release.namespace.execute(min(before), _CARRIED)
    with release.loaded("broken upgrade, an old decode pod deleted by force, rollback") as seen:
        release.install(broken(), tmp_path, verb="upgrade", wait=False)
        until("a new worker has crashed", lambda: crashed(release, "decode"))
        release.namespace.kill(min(before))
        until("there are two again", lambda: len(release.ready_pods("decode")) == 2)
        (reborn,) = set(release.ready_pods("decode")) - before
        assert release.namespace.execute(reborn, _CARRIED) == carried
        release.rollback()
        release.settled()
    seen.lost_only_what_ran()
    assert reborn in release.ready_pods("decode")


@pytest.mark.promise("S5-290", "S5-291")
def test_what_gitops_applies_and_prunes_leaves_old_pods_theirs_and_the_number_to_its_owner(
    namespace: Namespace, image: str, tmp_path: Path
) -> None:
    """As controllers do that render the chart and apply it on the server's side."""
    release = Release("gitops", namespace, image)
    few = {"frontend": component(1), "prefill": component(1), "decode": component(None)}
    good = {**BASE, **few, "fullnameOverride": release.name}
    try:
        release.sync({**good, "decode": component(2)}, tmp_path)
        release.settled()
        before = set(release.ready_pods("decode"))
        release.hand_over("decode", 2)
        release.sync(good, tmp_path)
        assert set(release.ready_pods("decode")) == before
        release.sync({**broken(), **few, "fullnameOverride": release.name}, tmp_path)
        until("a new worker has crashed", lambda: crashed(release, "decode"))
        release.namespace.kill(min(before))
        until("there are two again", lambda: len(release.ready_pods("decode")) == 2)
        release.sync(good, tmp_path)
        release.settled()
        assert release.wanted("decode") == 2
    finally:
        instance = f"app.kubernetes.io/instance={release.name}"
        namespace.kubectl("delete", "deployments", "-l", instance)
