"""A whole stack over mutual TLS and HTTPS, and certificates that are replaced while it serves."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from authority import Authority, Files
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stacks import MODEL, SIM_READY_SECONDS, metric_sum, options

from tandem.cli.plan import COMPONENTS
from tandem.cli.stack import Stack

PROMPT = "The for statement is used to"
SERVING = health_pb2.HealthCheckResponse.SERVING


class Secured:
    """A stack whose components have a certificate each."""

    def __init__(self, stack: Stack, files: dict[str, Files], public: Files) -> None:
        self.stack = stack
        self.files = files
        self.public = public

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

    def health(self, component: str, files: Files | None) -> Any:
        """What grpc.health.v1 answers a client with these files, or with none."""
        address = self.stack.components[component].address
        if files is None:
            channel = grpc.insecure_channel(address)
        else:
            credentials = grpc.ssl_channel_credentials(
                files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
            )
            name = [("grpc.ssl_target_name_override", "tandem")]
            channel = grpc.secure_channel(address, credentials, options=name)
        with channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                return stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status
            except grpc.RpcError as error:
                return error.code()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="module")
def secured(
    model_path: Path, certificates: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    files = {component: certificates.issue() for component in COMPONENTS}
    public = certificates.issue("localhost")
    flags = {component: each.flags for component, each in files.items()}
    flags["frontend"] += (f"--https-cert={public.cert}", f"--https-key={public.key}")
    plain = options("sim", model_path, hook_prefill="", hook_decode="", flags=flags)
    with Stack(plain, run_dir=tmp_path_factory.mktemp("tls")) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Secured(stack, files, public)


def test_the_openai_client_streams_through_a_stack_that_is_encrypted_throughout(
    secured: Secured,
) -> None:
    assert secured.complete()
    for component in ("router", "prefill_worker-0", "decode_worker-0"):
        assert secured.health(component, secured.files["frontend"]) == SERVING


@pytest.mark.promise("S5-125")
def test_every_grpc_port_refuses_who_has_no_certificate_of_ours(
    secured: Secured, tmp_path: Path
) -> None:
    ours, theirs = secured.files["frontend"], Authority(tmp_path / "strangers").issue()
    for component in ("router", "prefill_worker-0", "decode_worker-0"):
        stranger = Files(theirs.cert, theirs.key, ours.ca)
        assert secured.health(component, stranger) == grpc.StatusCode.UNAVAILABLE
        assert secured.health(component, None) == grpc.StatusCode.UNAVAILABLE


def test_every_component_says_when_its_certificates_end(secured: Secured) -> None:
    for component in secured.stack.components.values():
        url = f"http://{component.launch.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        files = ("tls_cert", "tls_ca", *(("https_cert",) if component.name == "frontend" else ()))
        for file in files:
            ends = metric_sum(text, "tandem_tls_certificate_expiry_seconds", {"file": file})
            assert 0 < ends - time.time() < 31 * 24 * 3600


@pytest.mark.promise("S5-125")
def test_a_stack_goes_over_to_another_ca_without_a_restart(
    secured: Secured, tmp_path: Path
) -> None:
    """Every file is replaced. Then the router is started anew, so that all dial again: the frontend
    to it, and it to workers that have run on all the while.
    """
    before = secured.complete()
    another = Authority(tmp_path / "another")
    old = {component: each.cert.read_bytes() for component, each in secured.files.items()}
    for files in secured.files.values():
        files.replace_by(another.issue())
    assert secured.complete() == before  # by streams that were open
    stack = secured.stack
    stack.components["router"].process.terminate()
    stack.components["router"].process.wait(timeout=40)
    stack.restart("router")
    stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
    assert secured.complete() == before
    assert all(old[name] != each.cert.read_bytes() for name, each in secured.files.items())
    for component in ("router", "prefill_worker-0", "decode_worker-0"):
        assert secured.health(component, secured.files["frontend"]) == SERVING
