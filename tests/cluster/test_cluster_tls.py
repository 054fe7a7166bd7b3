"""Certificates that the chart's Job makes: who gets an answer from which gRPC port, what an upgrade
keeps, and what a renewal changes.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_values import BASE
from guest_pods import sleeping
from kube import attempt, until
from release import COMPONENTS, Release

_ASK = """
import base64, json, sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
address, name, shown = sys.argv[1:4]
if shown == "nothing":
    channel = grpc.insecure_channel(address)
else:
    ca, key, cert = (base64.b64decode(each) for each in json.loads(shown))
    credentials = grpc.ssl_channel_credentials(ca, key or None, cert or None)
    channel = grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", name)])
try:
    health = health_pb2_grpc.HealthStub(channel)
    print(health.Check(health_pb2.HealthCheckRequest(), timeout=10).status)
except grpc.RpcError as error:
    print(error.code().name)
"""
_FILES = """
import os
folder = "/etc/tandem-tls"
print(sorted(name for name in os.listdir(folder) if not name.startswith("..")))
"""
_CERTIFICATE = "print(open('/etc/tandem-tls/tls.crt').read())"
_METRIC = "tandem_tls_certificate_expiry_seconds"
GRPC = {"router": (7000, "frontend"), "prefill": (7100, "router"), "decode": (7200, "router")}
"""Component -> its port, and the role that it answers."""


def secret(release: Release, suffix: str = "") -> dict[str, str]:
    """Base64 by name."""
    found: dict[str, str] = release.namespace.get("secret", f"{release.name}-tls{suffix}")["data"]
    return found


def ask(release: Release, guest: str, component: str, shown: list[str] | None) -> str:
    """What the health service at a component's gRPC port answers a pod that may reach it."""
    address = release.pods(component)[0]["status"]["podIP"]
    name = f"{component}.{release.name}.{release.namespace.name}"
    port = GRPC[component][0]
    files = "nothing" if shown is None else json.dumps(shown)
    said = release.namespace.execute(guest, _ASK, f"{address}:{port}", name, files)
    return said.strip()


@contextmanager
def job(release: Release) -> Iterator[str]:
    """The CronJob's work, done now; its log."""
    name = "renew-now"
    release.namespace.kubectl("create", "job", name, f"--from=cronjob/{release.name}-tls")
    try:
        release.namespace.kubectl(
            "wait", "--for=condition=complete", f"job/{name}", "--timeout=120s"
        )
        yield release.namespace.kubectl("logs", f"job/{name}")
    finally:
        release.namespace.kubectl("delete", "job", name)


@pytest.mark.promise("S5-125", "S6-157")
@pytest.mark.parametrize("component", GRPC)
def test_a_pod_gets_an_answer_from_a_grpc_port_by_its_role_alone(
    release: Release, component: str
) -> None:
    """From a pod that the policies take for a peer, so that TLS alone refuses it."""
    files = secret(release)
    caller = GRPC[component][1]
    labels = {
        "app.kubernetes.io/name": "tandem",
        "app.kubernetes.io/instance": release.name,
        "app.kubernetes.io/component": caller,
        # Out of the Service: it serves nothing.
        "guest": "true",
    }
    with sleeping(release.namespace, release.image, labels=labels) as guest:
        answers = {
            role: ask(
                release,
                guest,
                component,
                [files["ca.crt"], files[f"{role}.key"], files[f"{role}.crt"]],
            )
            for role in COMPONENTS
        }
        assert answers.pop(caller) in ("1", "2")  # serving or not
        assert set(answers.values()) == {"PERMISSION_DENIED"}
        assert ask(release, guest, component, None) == "UNAVAILABLE"
        assert ask(release, guest, component, [files["ca.crt"], "", ""]) == "UNAVAILABLE"


@pytest.mark.promise("S6-159")
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_pod_has_its_own_certificate_and_no_other(release: Release, component: str) -> None:
    files = secret(release)
    for pod in release.ready_pods(component):
        listed = release.namespace.execute(pod, _FILES).strip()
        assert listed == "['ca.crt', 'tls.crt', 'tls.key']"
        held = release.namespace.execute(pod, _CERTIFICATE).strip().encode()
        assert held == base64.b64decode(files[f"{component}.crt"]).strip()


@pytest.mark.promise("S5-127")
@pytest.mark.parametrize(
    ("verb", "what", "expected"),
    [
        ("get", "secret/{}-tls", "yes"),
        ("update", "secret/{}-tls-ca", "yes"),
        ("get", "secret/another", "no"),
        ("list", "secrets", "no"),
        ("create", "secrets", "no"),
        ("delete", "secret/{}-tls", "no"),
        ("get", "configmaps", "no"),
        ("list", "pods", "no"),
    ],
)
def test_the_job_may_read_and_replace_its_two_secrets_and_nothing_more(
    release: Release, verb: str, what: str, expected: str
) -> None:
    answer = attempt(
        "kubectl", "auth", "can-i", verb, what.format(release.name),
        "--as", f"system:serviceaccount:{release.namespace.name}:{release.name}-tls",
        "-n", release.namespace.name,
    )  # fmt: skip
    assert answer.stdout.strip() == expected


def test_an_upgrade_keeps_the_certificates(release: Release, tmp_path: Path) -> None:
    before = secret(release), secret(release, "-ca")
    values: dict[str, Any] = copy.deepcopy(BASE)
    values["commonAnnotations"] = {"changed": "yes"}
    # Another pod, and so another Job, which finds everything good.
    values["tls"]["job"]["certificateDays"] = 60
    try:
        release.install(values, tmp_path, verb="upgrade")
        until("the new Job has run", lambda: all(_done(each) for each in _jobs(release)))
        assert (secret(release), secret(release, "-ca")) == before
    finally:
        release.install(BASE, tmp_path, verb="upgrade")


@pytest.mark.promise("S6-160")
def test_what_is_renewed_reaches_running_pods_without_a_restart(release: Release) -> None:
    """A certificate that is gone stands for one that nears its end."""
    name = f"{release.name}-tls"
    old = secret(release)
    pods = release.ready_pods("decode")
    ended = release.metric("decode", _METRIC, file="tls_cert")
    patch = [{"op": "remove", "path": "/data/decode.crt"}]
    release.namespace.kubectl("patch", "secret", name, "--type=json", "-p", json.dumps(patch))
    with job(release) as said:
        assert "decode: new certificate" in said
    new = secret(release)
    assert {key for key in new if new[key] != old[key]} == {"decode.crt", "decode.key"}
    wanted = base64.b64decode(new["decode.crt"]).strip()
    until(
        "every pod has it",
        lambda: all(
            release.namespace.execute(pod, _CERTIFICATE).strip().encode() == wanted for pod in pods
        ),
        seconds=180,
    )
    assert release.ready_pods("decode") == pods
    assert release.metric("decode", _METRIC, file="tls_cert") > ended


def _jobs(release: Release) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = release.namespace.get("jobs", "-l", release.selector("tls"))[
        "items"
    ]
    return found


def _done(found: dict[str, Any]) -> bool:
    return bool(found.get("status", {}).get("succeeded"))
