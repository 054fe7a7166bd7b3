"""One release for the whole suite, in a namespace that enforces Pod Security "restricted".

Needs kubectl and helm on the PATH, KUBECONFIG, and TANDEM_TEST_IMAGE (name:tag, an image of
docker/tandem.Dockerfile that the nodes have or can pull). Nothing else is known of the cluster.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from cluster_values import BASE, DECODES
from guest_pods import MEASURED
from kube import RESTRICTED, Namespace, missing
from release import Release

OPERATION = "operation"


def pytest_configure() -> None:
    if lacks := missing():
        pytest.exit(f"cluster tests: {lacks}", returncode=2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What loads saw travels in the report, for the test may run in a process of its own."""
    MEASURED.clear()
    try:
        return (yield)
    finally:
        item.user_properties += [(OPERATION, seen.row()) for seen in MEASURED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of docs/kubernetes/operations.md."""
    for report in terminalreporter.getreports("passed"):
        for name, row in report.user_properties:
            if name == OPERATION:
                terminalreporter.write_line(str(row))


@pytest.fixture(scope="session")
def image() -> str:
    return os.environ["TANDEM_TEST_IMAGE"]


@pytest.fixture(scope="session")
def namespace() -> Iterator[Namespace]:
    with Namespace.fresh(f"tandem-test-{uuid.uuid4().hex[:6]}", **RESTRICTED) as made:
        yield made


@pytest.fixture(scope="session")
def installed(
    namespace: Namespace, image: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, str]:
    """The release, and what `helm install --wait` printed."""
    release = Release("tandem", namespace, image)
    printed = release.install(BASE, tmp_path_factory.mktemp("values"))
    release.scale("decode", DECODES)
    return release, printed


@pytest.fixture
def release(installed: tuple[Release, str]) -> Release:
    """The release, with everything rolled out."""
    installed[0].settled()
    return installed[0]
