"""kubectl and helm, as the tests call them: bounded; every failure holds what they printed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

CHART = Path(__file__).parents[2] / "helm" / "tandem"
HELM_3 = "TANDEM_TEST_HELM3"
HELMS = {"helm": "helm", "helm3": os.environ.get(HELM_3, "")}
"""The programs by their names in tests; empty: it was not said where it is."""
COMMAND_SECONDS = 300.0
T = TypeVar("T")


class CommandError(AssertionError):
    """A command failed; the message holds all that it printed."""


def run(*command: str, stdin: str | None = None, timeout: float = COMMAND_SECONDS) -> str:
    """The standard output of a command that must succeed."""
    done = attempt(*command, stdin=stdin, timeout=timeout)
    if done.returncode:
        raise CommandError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def attempt(
    *command: str, stdin: str | None = None, timeout: float = COMMAND_SECONDS
) -> subprocess.CompletedProcess[str]:
    """A command that may fail."""
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


def missing() -> str:
    """What the environment lacks to run these tests; empty: nothing."""
    if not os.environ.get("TANDEM_TEST_IMAGE"):
        return "set TANDEM_TEST_IMAGE to an image (name:tag) that the cluster's nodes can start"
    absent = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
    return f"{' and '.join(absent)} must be on the PATH" if absent else ""


def until(what: str, probe: Callable[[], T], *, seconds: float = 300.0) -> T:
    """The first true answer of `probe`, asked twice a second. Fails with its last answer."""
    end = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}; last: {answer!r}"
        time.sleep(0.5)


RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Labels of a namespace that enforces Pod Security "restricted"."""


@dataclass(frozen=True)
class Namespace:
    """A namespace, and what the tests do in it."""

    name: str

    @classmethod
    @contextmanager
    def fresh(cls, name: str, **labels: str) -> Iterator[Namespace]:
        """A new namespace that goes, with all in it, when the block ends."""
        metadata = {"name": name, "labels": labels}
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        try:
            yield cls(name)
        finally:
            run("kubectl", "delete", "namespace", name, "--wait=false")

    def kubectl(
        self, *arguments: str, stdin: str | None = None, timeout: float = COMMAND_SECONDS
    ) -> str:
        return run("kubectl", "-n", self.name, *arguments, stdin=stdin, timeout=timeout)

    def attempt(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """kubectl, where a refusal is what is looked for."""
        return attempt("kubectl", "-n", self.name, *arguments, stdin=stdin)

    def helm(self, *arguments: str, program: str = "helm", timeout: float = COMMAND_SECONDS) -> str:
        return run(program, "--namespace", self.name, *arguments, timeout=timeout)

    def get(self, kind: str, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        for each in objects:
            self.kubectl("apply", "-f", "-", stdin=json.dumps(each))

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Pods that are not on their way out."""
        pods: list[dict[str, Any]] = self.get("pods", "-l", selector)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def rolled_out(self, deployment: str, *, seconds: int = 240) -> None:
        self.kubectl("rollout", "status", f"deployment/{deployment}", f"--timeout={seconds}s")

    def evict(self, pod: str) -> str:
        """Why the pod may not go; empty: it goes."""
        metadata = {"name": pod, "namespace": self.name}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/eviction"
        return self.attempt("create", "--raw", path, "-f", "-", stdin=json.dumps(body)).stderr

    def kill(self, pod: str) -> None:
        """At once, without a drain."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def execute(self, pod: str, script: str, *arguments: str) -> str:
        """What a Python script prints in a running pod."""
        return self.kubectl("exec", "-i", pod, "--", "python", "-", *arguments, stdin=script)


def apply(manifest: dict[str, Any]) -> None:
    run("kubectl", "apply", "-f", "-", stdin=json.dumps(manifest))


def names(objects: Sequence[dict[str, Any]]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]
