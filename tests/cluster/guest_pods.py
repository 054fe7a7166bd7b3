"""Pods that the tests start beside the release: one to run scripts in, one that loads."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube import Namespace, until

LOAD_SCRIPT = Path(__file__).with_name("load.py")


def manifest(
    name: str, image: str, command: list[str], *, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """A pod that a namespace under Pod Security "restricted" takes."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def phase(namespace: Namespace, pod: str) -> str:
    return str(namespace.get("pod", pod)["status"]["phase"])


@contextmanager
def sleeping(
    namespace: Namespace, image: str, *, labels: dict[str, str] | None = None
) -> Iterator[str]:
    """A running pod that does nothing: scripts are run in it by Namespace.execute."""
    name = f"probe-{uuid.uuid4().hex[:6]}"
    idle = ["python", "-c", "import time; time.sleep(3600)"]
    namespace.apply(manifest(name, image, idle, labels=labels))
    try:
        until(f"pod {name} runs", lambda: phase(namespace, name) == "Running")
        yield name
    finally:
        namespace.kubectl("delete", "pod", name, "--wait=false")


@dataclass
class Load:
    """What a load saw of an operation, known once its block has ended."""

    operation: str
    clients: int
    answered: int = 0
    failures: dict[str, int] | None = None
    longest: float = 0.0
    """Seconds of the slowest whole answer."""
    seconds: float = 0.0
    """That the block took."""

    def whole(self) -> None:
        """No answer failed."""
        assert self.failures == {}, self
        assert self.answered > self.clients

    def row(self) -> str:
        """Of the table in docs/kubernetes/operations.md."""
        failed = sum((self.failures or {}).values())
        return (
            f"| {self.operation} | {self.clients} | {self.answered} | {failed} |"
            f" {self.longest:.1f} s | {self.seconds:.0f} s |"
        )

    def lost_only_what_ran(self) -> None:
        """On a worker that was killed: no more than an answer of each client."""
        assert self.failures is not None
        assert sum(self.failures.values()) <= self.clients, self
        assert all("error event: worker_lost" in failure for failure in self.failures), self
        assert self.answered > self.clients


MEASURED: list[Load] = []
"""Every load of the test that runs; conftest.py makes a table of them."""


@contextmanager
def load(
    operation: str, namespace: Namespace, image: str, url: str, model: str, *, clients: int
) -> Iterator[Load]:
    """Clients that stream answer after answer while the block does what `operation` says."""
    name = f"load-{uuid.uuid4().hex[:6]}"
    command = ["python", "-c", LOAD_SCRIPT.read_text(), url, model, str(clients)]
    namespace.apply(manifest(name, image, command))
    seen = Load(operation, clients)
    try:
        until(f"pod {name} runs", lambda: phase(namespace, name) == "Running")
        exists = "import os, sys; print(os.path.exists('/tmp/started'))"
        until("the load runs", lambda: "True" in namespace.execute(name, exists))
        began = time.monotonic()
        yield seen
        seen.seconds = time.monotonic() - began
        namespace.execute(name, "open('/tmp/stop', 'w').close()")
        until("the load ends", lambda: phase(namespace, name) in ("Succeeded", "Failed"))
        for key, value in json.loads(namespace.kubectl("logs", name)).items():
            setattr(seen, key, value)
        MEASURED.append(seen)
    finally:
        namespace.kubectl("delete", "pod", name, "--wait=false")
