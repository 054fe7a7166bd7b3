"""A Helm release of the chart, as the tests reach it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guest_pods
import yaml
from kube import CHART, CommandError, Namespace, names, run, until

from tandem.free_ports import FreePorts

COMPONENTS = ("frontend", "router", "prefill", "decode")
MODEL = "tandem-tiny"
CLIENTS = 8
_METRICS_PORTS = {"frontend": 8001, "router": 7001, "prefill": 7101, "decode": 7201}
_SCRAPE = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


@dataclass(frozen=True)
class Release:
    name: str
    namespace: Namespace
    image: str
    helm: str = "helm"
    """The program, of the version that the release is kept with."""

    @property
    def url(self) -> str:
        """The frontend's Service, from within the cluster."""
        return f"http://{self.service('frontend')}:8000"

    def service(self, component: str) -> str:
        return f"{self.name}-{component}.{self.namespace.name}.svc"

    def selector(self, component: str) -> str:
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"

    def pods(self, component: str) -> list[dict[str, Any]]:
        return self.namespace.pods(self.selector(component))

    def ready_pods(self, component: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.pods(component)
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions", ())
            )
        ]

    def install(
        self,
        values: Mapping[str, Any],
        folder: Path,
        *,
        verb: str = "install",
        minutes: int = 4,
        wait: bool = True,
    ) -> str:
        """`helm install`, or upgrade; what it printed."""
        arguments = [*self._values(values, folder), "--timeout", f"{minutes}m"]
        if wait:
            arguments.append("--wait")
        seconds = 60 * minutes + 30
        try:
            return self.namespace.helm(
                verb, self.name, str(CHART), *arguments, program=self.helm, timeout=seconds
            )
        except CommandError as error:
            error.add_note(self.troubles())
            raise

    def _values(self, values: Mapping[str, Any], folder: Path) -> list[str]:
        file = folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        repository, _, tag = self.image.rpartition(":")
        return ["--values", str(file), "--set", f"image.repository={repository},image.tag={tag}"]

    def rollback(self) -> None:
        """To the revision before."""
        self.namespace.helm("rollback", self.name, "--wait", "--timeout", "4m", program=self.helm)

    def uninstall(self) -> None:
        self.namespace.helm("uninstall", self.name, "--wait", "--timeout", "3m", program=self.helm)

    def sync(self, values: Mapping[str, Any], folder: Path) -> None:
        """What a GitOps controller does: render, apply on the server's side, prune what is no
        longer rendered.
        """
        manifests = folder / "rendered.yaml"
        arguments = ["--skip-tests", *self._values(values, folder)]
        manifests.write_text(self.namespace.helm("template", self.name, str(CHART), *arguments))
        run(
            "env", "KUBECTL_APPLYSET=true", "kubectl", "-n", self.namespace.name, "apply",
            "--server-side", "--field-manager=gitops", "--prune", f"--applyset={self.name}",
            "-f", str(manifests),
        )  # fmt: skip

    def scale(self, component: str, replicas: int) -> None:
        deployment = f"deployment/{self.name}-{component}"
        self.namespace.kubectl("scale", deployment, f"--replicas={replicas}")

    def hand_over(self, component: str, replicas: int) -> None:
        """Let another than who applies the chart own the number of a Deployment, as it is."""
        owned = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"{self.name}-{component}"},
            "spec": {"replicas": replicas},
        }
        arguments = ["--server-side", "--field-manager=scaling", "-f", "-"]
        self.namespace.kubectl("apply", *arguments, stdin=json.dumps(owned))

    def wanted(self, component: str) -> int:
        """Pods that its Deployment asks for."""
        deployment = self.namespace.get("deployment", f"{self.name}-{component}")
        return int(deployment["spec"]["replicas"])

    def loaded(
        self, operation: str, *, clients: int = CLIENTS
    ) -> AbstractContextManager[guest_pods.Load]:
        """Clients that stream while the block runs."""
        return guest_pods.load(
            operation, self.namespace, self.image, self.url, MODEL, clients=clients
        )

    def troubles(self) -> str:
        """Pods that are not ready, and what they said last."""
        said = [self.namespace.kubectl("get", "pods", "-o", "wide")]
        for component in COMPONENTS:
            ready = self.ready_pods(component)
            for pod in names(self.pods(component)):
                if pod not in ready:
                    said.append(self.namespace.attempt("describe", "pod", pod).stdout[-1500:])
                    said.append(self.namespace.attempt("logs", pod, "--tail=20").stdout)
        return "\n".join(said)

    def settled(self) -> None:
        """Every Deployment has rolled out, and no old pod is left."""
        for component in COMPONENTS:
            self.namespace.rolled_out(f"{self.name}-{component}")
        for component in COMPONENTS:
            until(
                f"only new pods of {component}",
                lambda component=component: (
                    not [
                        pod
                        for pod in self.namespace.get("pods", "-l", self.selector(component))[
                            "items"
                        ]
                        if "deletionTimestamp" in pod["metadata"]
                    ]
                ),
            )

    def metric(self, component: str, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels over the component's ready pods."""
        total, found = 0.0, False
        url = f"http://127.0.0.1:{_METRICS_PORTS[component]}/metrics"
        for pod in self.ready_pods(component):
            for line in self.namespace.execute(pod, _SCRAPE, url).splitlines():
                match = re.match(rf"^{name}(?:\{{(.*)\}})? (\S+)$", line)
                wanted = (f'{key}="{value}"' for key, value in labels.items())
                if match and all(each in (match[1] or "") for each in wanted):
                    total, found = total + float(match[2]), True
        assert found, f"no series {name} {labels} at {component}"
        return total

    @contextmanager
    def forwarded(self, component: str = "frontend", port: int = 8000) -> Iterator[str]:
        """The address at which this machine reaches a Service while the block runs."""
        with ExitStack() as held:
            local = FreePorts(held).port()
            command = [
                "kubectl", "-n", self.namespace.name, "port-forward",
                f"service/{self.name}-{component}", f"{local}:{port}",
            ]  # fmt: skip
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                until("the port is forwarded", lambda: _answers(local), seconds=30)
                yield f"127.0.0.1:{local}"
            finally:
                process.terminate()
                process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0
