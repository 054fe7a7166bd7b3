"""Certificates that the chart's controller makes: who gets an answer from which gRPC port, what an
upgrade keeps, what is made again, and what a renewal changes.
"""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
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
        ("get", "serviceaccount/{}-tls", "yes"),
        ("create", "secrets", "yes"),
        ("delete", "secret/{}-tls", "no"),
        ("get", "configmaps", "no"),
        ("list", "pods", "no"),
    ],
)
def test_the_controller_may_read_and_replace_its_own_secrets_and_make_some(
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
    values["tls"]["controller"]["certificateDays"] = 60
    try:
        release.install(values, tmp_path, verb="upgrade")
        assert (secret(release), secret(release, "-ca")) == before
    finally:
        release.install(BASE, tmp_path, verb="upgrade")


@pytest.mark.promise("S6-500")
def test_a_secret_that_is_deleted_is_there_again_before_a_new_pod_has_waited_long(
    release: Release,
) -> None:
    """Without an upgrade, and with the same CA."""
    name, authority = f"{release.name}-tls", secret(release, "-ca")
    release.namespace.kubectl("delete", "secret", name)
    (old, *_) = release.ready_pods("decode")
    release.namespace.kill(old)
    until("the Secret is there", lambda: _exists(release, name), seconds=60)
    assert set(secret(release)) >= {"ca.crt", "decode.crt", "router.key"}
    assert secret(release, "-ca") == authority
    release.settled()
    release.namespace.kubectl("delete", "secret", f"{name}-voucher")
    until("the voucher key is there", lambda: _exists(release, f"{name}-voucher"), seconds=60)


@pytest.mark.promise("S6-500")
def test_what_replaces_the_objects_of_a_release_keeps_its_secrets(release: Release) -> None:
    before = secret(release), secret(release, "-ca"), secret(release, "-voucher")
    manifest = release.namespace.helm("get", "manifest", release.name)
    kept = [each for each in yaml.safe_load_all(manifest) if each and each["kind"] != "Service"]
    release.namespace.kubectl("replace", "-f", "-", stdin=yaml.safe_dump_all(kept))
    assert (secret(release), secret(release, "-ca"), secret(release, "-voucher")) == before


@pytest.mark.promise("S6-160")
def test_what_is_renewed_reaches_running_pods_without_a_restart(release: Release) -> None:
    """A certificate that is gone stands for one that nears its end."""
    name = f"{release.name}-tls"
    old = secret(release)
    pods = release.ready_pods("decode")
    ended = release.metric("decode", _METRIC, file="tls_cert")
    patch = [{"op": "remove", "path": "/data/decode.crt"}]
    release.namespace.kubectl("patch", "secret", name, "--type=json", "-p", json.dumps(patch))
    until("it is there again", lambda: "decode.crt" in secret(release), seconds=60)
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


def _exists(release: Release, name: str) -> bool:
    return release.namespace.attempt("get", "secret", name).returncode == 0
