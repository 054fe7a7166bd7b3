"""A namespace as platform teams give it: Pod Security "restricted", nothing connects to anything by
default, and a quota that takes no pod without limits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_values import BASE, SMALL
from guest_pods import manifest, phase
from kube import RESTRICTED, Namespace, until
from release import MODEL, Release

BUCKET = Path(__file__).with_name("bucket.py")
WAIT_SECONDS = 120

BOUNDED = {**SMALL, "limits": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}}
DENY_ALL = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "limits"},
    "spec": {
        "hard": {
            "pods": "20",
            "limits.cpu": "40",
            "limits.memory": "40Gi",
            "limits.ephemeral-storage": "40Gi",
        }
    },
}


def bounded() -> dict[str, Any]:
    """The suite's values with limits for every pod, one of each component; requests wait for
    workers.
    """
    values = copy.deepcopy(BASE)
    for component in ("frontend", "router", "prefill", "decode"):
        values[component] |= {"replicas": 1, "resources": BOUNDED}
    values["router"]["config"] = {"expected_models": [MODEL], "pair_wait_seconds": WAIT_SECONDS}
    return values | {"tls": {"controller": {"resources": BOUNDED}}, "tests": {"resources": BOUNDED}}


@pytest.fixture(scope="module")
def closed(namespace: Namespace) -> Iterator[Namespace]:
    with Namespace.fresh(f"{namespace.name}-closed", **RESTRICTED) as made:
        made.apply(DENY_ALL, QUOTA)
        yield made


@pytest.fixture(scope="module")
def release(closed: Namespace, image: str, tmp_path_factory: pytest.TempPathFactory) -> Release:
    installed = Release("tandem", closed, image)
    installed.install(bounded(), tmp_path_factory.mktemp("values"))
    return installed


@pytest.mark.promise("S5-314")
def test_the_namespace_takes_no_pod_without_limits(closed: Namespace, image: str) -> None:
    """Else the suite would prove nothing about quotas."""
    stranger = json.dumps(manifest("stranger", image, ["sleep", "1"]))
    assert "must specify limits.cpu" in closed.attempt("apply", "-f", "-", stdin=stranger).stderr


@pytest.mark.promise("S5-314", "S5-313")
def test_a_release_proves_itself_where_all_is_denied_and_counted(release: Release) -> None:
    said = release.namespace.helm("test", release.name, "--logs", "--timeout", "1m")
    assert "KV" in said.partition(f"POD LOGS: {release.name}-test")[2]


@pytest.mark.promise("S5-316")
def test_a_request_at_a_release_without_workers_waits_for_those_that_it_makes_start(
    release: Release,
) -> None:
    """As KEDA does it, by the metric that its triggers ask for."""
    workers = [f"deployment/{release.name}-{phase}" for phase in ("prefill", "decode")]

    def scale(replicas: int) -> None:
        release.namespace.kubectl("scale", *workers, f"--replicas={replicas}")

    def ask(address: str) -> int:
        body = {"model": MODEL, "prompt": "Anything", "max_tokens": 4}
        url = f"http://{address}/v1/completions"
        return httpx.post(url, json=body, timeout=WAIT_SECONDS).status_code

    scale(0)
    until("no worker is left", lambda: not release.pods("prefill") + release.pods("decode"))
    assert release.metric("frontend", "tandem_frontend_open_requests") == 0
    with release.forwarded() as address, ThreadPoolExecutor(1) as client:
        asked = client.submit(ask, address)
        until(
            "a request is open at the frontend",
            lambda: release.metric("frontend", "tandem_frontend_open_requests") == 1,
        )
        assert not asked.done()
        scale(1)
        assert asked.result(WAIT_SECONDS) == 200


@pytest.fixture
def bucket(closed: Namespace, image: str) -> Iterator[str]:
    """The address of a storage in the namespace, which holds the image's own model."""
    model = f"/opt/tandem/model/{MODEL}"
    command = ["python", "-c", BUCKET.read_text(), "9000", "models", MODEL, model]
    pod = manifest("bucket", image, command, labels={"app": "bucket"})
    pod["spec"]["containers"][0]["resources"] = BOUNDED
    opened = {"podSelector": {"matchLabels": {"app": "bucket"}}, "ingress": [{}]}
    metadata = {"name": "bucket"}
    closed.apply({**DENY_ALL, "metadata": metadata, "spec": opened}, pod)
    until("the bucket runs", lambda: phase(closed, "bucket") == "Running")
    yield f"http://{closed.get('pod', 'bucket')['status']['podIP']}:9000"
    closed.kubectl("delete", "pod", "bucket", "--wait=false")


@pytest.mark.promise("S5-314", "S5-317")
def test_a_model_comes_out_of_a_bucket_where_all_is_denied_and_counted(
    release: Release, bucket: str, tmp_path: Path
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    values = bounded() | {
        "engine": {"type": "sim"},
        "model": {
            "uri": f"s3://models/{MODEL}",
            "hubEndpoint": bucket,
            "extraEnv": [{"name": name, "value": value} for name, value in keys.items()],
            "preload": {"resources": BOUNDED},
        },
    }
    release.install(values, tmp_path, verb="upgrade")
    release.namespace.helm("test", release.name, "--timeout", "1m")
    decode = release.ready_pods("decode")[0]
    folder = f"import os; print(sorted(os.listdir('/models/models--{MODEL}')))"
    assert "tokenizer.json" in release.namespace.execute(decode, folder)
