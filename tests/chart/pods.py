"""The pods that a set of objects makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import chart_renders
import yaml
from chart_renders import Manifest

LEADS = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
GROUP = {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader.group.tandem"}
"""Variables that a LeaderWorkerSet's controller puts before those of a pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the template of some."""

    owner: str
    component: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """With the init containers."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def carried(self, volume: str) -> dict[str, str]:
        """File to text of a volume that shows the pod's own annotations."""
        found = next(each for each in self.spec["volumes"] if each["name"] == volume)
        return {
            item["path"]: self.annotations[_key(item)] for item in found["downwardAPI"]["items"]
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What its component reads."""
        content: dict[str, Any] = yaml.safe_load(self.carried("settings")["tandem.yaml"])
        return content

    @property
    def main(self) -> dict[str, Any]:
        first: dict[str, Any] = self.spec["containers"][0]
        return first


def _key(item: dict[str, Any]) -> str:
    path = str(item["fieldRef"]["fieldPath"])
    return path.removeprefix("metadata.annotations['").removesuffix("']")


def expand(value: str) -> str:
    """A variable's value, as the kubelet makes it from those before."""
    for name, text in GROUP.items():
        value = value.replace(f"$({name})", text)
    return value


def of(objects: tuple[Manifest, ...]) -> Iterator[Pod]:
    for each in objects:
        if each["kind"] == "Pod":
            template = each
        elif each["kind"] in ("Deployment", "Job"):
            template = each["spec"]["template"]
        elif each["kind"] == "CronJob":
            template = each["spec"]["jobTemplate"]["spec"]["template"]
        elif each["kind"] == "LeaderWorkerSet":
            template = each["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        else:
            continue
        metadata = template["metadata"]
        # What the LeaderWorkerSet's controller adds to the pod that leads.
        added = LEADS if each["kind"] == "LeaderWorkerSet" else {}
        yield Pod(
            owner=f"{each['kind']}/{each['metadata']['name']}",
            component=metadata["labels"]["app.kubernetes.io/component"],
            labels=metadata["labels"] | added,
            annotations=metadata.get("annotations", {}),
            spec=template["spec"],
        )


def of_values(values: Mapping[str, Any]) -> dict[str, Pod]:
    """Component to its pod."""
    return {pod.component: pod for pod in of(chart_renders.manifests(values))}


def of_set(name: str) -> dict[str, Pod]:
    """Component to its pod."""
    return {pod.component: pod for pod in of(chart_renders.of_set(name))}


def made(values: Mapping[str, Any], kind: str, name: str) -> Manifest:
    """The object of a kind and a name that values make."""
    (found,) = (
        each
        for each in chart_renders.manifests(values)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def by_name(name: str, kind: str) -> dict[str, Manifest]:
    """The objects of a kind that a set makes."""
    return {
        each["metadata"]["name"]: each
        for each in chart_renders.of_set(name)
        if each["kind"] == kind
    }
