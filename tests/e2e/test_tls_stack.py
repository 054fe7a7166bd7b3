"""A whole stack over mutual TLS and HTTPS: who gets an answer from which port, and certificates
that are replaced while it serves.
"""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from authority import Authority, Files
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stacks import MODEL, SIM_READY_SECONDS, metric_sum, options

from tandem.cli import main
from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts
from tandem.wire.tls import ROLES, PeerRole
from tandem_executor import Executor, ExecutorConfig, Request

PROMPT = "The for statement is used to"
SERVING = health_pb2.HealthCheckResponse.SERVING
FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED
REFUSED = grpc.StatusCode.UNAVAILABLE
GRPC: dict[str, tuple[PeerRole, PeerRole]] = {
    # Each gRPC port -> the role that it has, and the one that it answers.
    "router": ("router", "frontend"),
    "prefill_worker-0": ("prefill", "router"),
    "decode_worker-0": ("decode", "router"),
    "hand-over": ("prefill", "decode"),
}


def files_of(folder: Path, role: PeerRole) -> Files:
    return Files(folder / f"{role}.crt", folder / f"{role}.key", folder / "ca.crt")


class Secured:
    """A stack with the certificates that `tandem certificates` made."""

    def __init__(self, stack: Stack, folder: Path, public: Files, kv_port: int) -> None:
        self.stack = stack
        self.folder = folder
        self.public = public
        self._kv_port = kv_port

    @property
    def url(self) -> str:
        port = self.stack.components["frontend"].address.rpartition(":")[2]
        return f"https://localhost:{port}"

    def complete(self) -> str:
        trust = ssl.create_default_context(cafile=self.public.ca)
        with (
            httpx.Client(verify=trust) as http,
            openai.OpenAI(
                base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=http
            ) as client,
        ):
            stream = client.completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].text for chunk in stream)

    def health(self, port: str, files: Files | None) -> Any:
        """What grpc.health.v1 answers a client with these files, or with none, at a port of
        GRPC.
        """
        if port == "hand-over":
            address = f"127.0.0.1:{self._kv_port}"
        else:
            address = self.stack.components[port].address
        if files is None:
            channel = grpc.insecure_channel(address)
        else:
            credentials = grpc.ssl_channel_credentials(
                files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
            )
            name = [("grpc.ssl_target_name_override", f"{GRPC[port][0]}.tandem")]
            channel = grpc.secure_channel(address, credentials, options=name)
        with channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                return stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status
            except grpc.RpcError as error:
                return error.code()  # type: ignore[attr-defined]

    def of(self, role: PeerRole) -> Files:
        return files_of(self.folder, role)


@pytest.fixture(scope="module")
def secured(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates") / "ours"
    assert main(["certificates", "--to", str(folder)]) == 0
    public = Authority(folder.parent / "public").issue("localhost")
    with ExitStack() as held:
        kv_port = FreePorts(held).port()
        plain = options(
            "sim",
            model_path,
            hook_prefill="",
            hook_decode="",
            flags={"frontend": (f"--https-cert={public.cert}", f"--https-key={public.key}")},
            engine_options=(f"kv_port={kv_port}",),
            certificates=folder,
        )
        stack = held.enter_context(Stack(plain, run_dir=tmp_path_factory.mktemp("tls")))
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Secured(stack, folder, public, kv_port)


def test_the_openai_client_streams_through_a_stack_that_is_encrypted_throughout(
    secured: Secured,
) -> None:
    assert secured.complete()


@pytest.mark.promise("S5-125", "S6-157")
@pytest.mark.parametrize("port", GRPC)
def test_every_grpc_port_answers_one_role_and_nobody_else(
    secured: Secured, tmp_path: Path, port: str
) -> None:
    """Nobody: another role of ours, a certificate of another CA with the right name, none."""
    answers = {role: secured.health(port, secured.of(role)) for role in ROLES}
    caller = GRPC[port][1]
    assert answers == dict.fromkeys(ROLES, FORBIDDEN) | {caller: SERVING}
    theirs = Authority(tmp_path / "strangers").issue(f"{caller}.tandem")
    stranger = Files(theirs.cert, theirs.key, secured.of("router").ca)
    assert secured.health(port, stranger) == REFUSED
    assert secured.health(port, None) == REFUSED


@pytest.mark.promise("S6-157")
@pytest.mark.parametrize("role", ROLES)
def test_an_executor_is_answered_with_a_frontend_s_certificate_and_no_other(
    secured: Secured, role: PeerRole
) -> None:
    files = secured.of(role)
    config = ExecutorConfig(
        tls_cert=str(files.cert),
        tls_key=str(files.key),
        tls_ca=str(files.ca),
        router_wait_seconds=10.0 if role == "frontend" else 1.0,
    )
    with Executor(secured.stack.components["router"].address, config) as executor:
        request_id = executor.enqueue_request(Request([1, 2, 3], max_tokens=4))
        (response,) = executor.await_responses(request_id, 30.0)
    assert response.error_code == ("" if role == "frontend" else "router_lost")


def test_every_component_says_when_its_certificates_end(secured: Secured) -> None:
    for component in secured.stack.components.values():
        url = f"http://{component.launch.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        files = ("tls_cert", "tls_ca", *(("https_cert",) if component.name == "frontend" else ()))
        for file in files:
            ends = metric_sum(text, "tandem_tls_certificate_expiry_seconds", {"file": file})
            assert 0 < ends - time.time() < 3651 * 24 * 3600


@pytest.mark.promise("S5-125")
def test_a_stack_goes_over_to_another_ca_without_a_restart(secured: Secured) -> None:
    """Every file of TLS is replaced. Then the router is started anew, so that all dial again: the
    frontend to it, and it to workers that have run on all the while.
    """
    before = secured.complete()
    old = {path.name: path.read_bytes() for path in secured.folder.iterdir()}
    (secured.folder / "authorities.pem").unlink()
    assert main(["certificates", "--to", str(secured.folder)]) == 0
    assert secured.complete() == before  # by streams that were open
    stack = secured.stack
    stack.components["router"].process.terminate()
    stack.components["router"].process.wait(timeout=40)
    stack.restart("router")
    stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
    assert secured.complete() == before
    assert not old.keys() - {path.name for path in secured.folder.iterdir()}
    kept = {name for name in old if old[name] == (secured.folder / name).read_bytes()}
    assert kept == {"voucher.key"}, "vouchers that were given still serve"
    for port, (_, caller) in GRPC.items():
        assert secured.health(port, secured.of(caller)) == SERVING
