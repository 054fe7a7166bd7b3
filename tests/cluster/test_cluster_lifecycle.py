"""A release of its own for what the shared one cannot show: a bare install, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from kube import Namespace, run, until
from release import COMPONENTS, Release

LINES_OF_A_TEST = 4


def left_over(namespace: Namespace, name: str) -> list[str]:
    """Every object of any namespaced kind that carries the release's label."""
    kinds = run("kubectl", "api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    wanted = [kind for kind in kinds if "events" not in kind and "metrics.k8s.io" not in kind]
    label = f"app.kubernetes.io/instance={name}"
    found = namespace.kubectl("get", ",".join(wanted), "-l", label, "-o", "name", "--show-kind")
    return found.split()


@pytest.mark.promise("S5-133", "S5-313")
def test_a_bare_install_serves_and_uninstall_leaves_the_log_of_its_test(
    namespace: Namespace, image: str, tmp_path: Path
) -> None:
    release = Release("bare", namespace, image)
    release.install({"fullnameOverride": "bare"}, tmp_path)
    said = release.namespace.helm("test", "bare", "--logs", "--timeout", "3m").splitlines()
    checks = said[said.index("POD LOGS: bare-test") + 1 :]
    told = [line for line in checks if line.strip() and "waiting until" not in line]
    assert len(told) == LINES_OF_A_TEST, checks
    assert all(release.ready_pods(component) for component in COMPONENTS)
    assert left_over(namespace, "bare")
    release.namespace.helm("uninstall", "bare", "--wait", "--timeout", "3m")
    # Helm waits for the objects it made, not for the pods that these had.
    until("its last test is left", lambda: left_over(namespace, "bare") == ["pod/bare-test"])
    until(
        "the Secrets of its certificates went with their account",
        lambda: namespace.attempt("get", "secret", "bare-tls", "bare-tls-ca").returncode != 0,
    )
    namespace.kubectl("delete", "pod", "bare-test")
