"""grpcurl, and stubs over grpc-go, at every gRPC port of a stack: in plaintext, and with
certificates of the role that a port answers.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from go_end import GO, GoChannel, program_or_skip
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stacks import MODEL, SIM_READY_SECONDS, options

from tandem.cli import main
from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem.wire.tls import PeerRole

pytestmark = [*GO, pytest.mark.promise("S5-445")]

PATIENCE = 60
HEALTH = "grpc.health.v1.Health"
PORTS: dict[str, tuple[PeerRole, PeerRole, str]] = {
    # Each port -> the role that it has, the one that it answers, and its service.
    "router": ("router", "frontend", "tandem.v1.Router"),
    "prefill_worker-0": ("prefill", "router", "tandem.v1.Worker"),
    "decode_worker-0": ("decode", "router", "tandem.v1.Worker"),
    "kv": ("prefill", "decode", "tandem.v1.KvTransfer"),
}
REFLECTING = [port for port in PORTS if port != "kv"]
TASK = {"model": MODEL, "promptText": "Hello", "sampling": {"maxTokens": 16}, "wantText": True}


@dataclass(frozen=True)
class Ports:
    stack: Stack
    kv_port: int
    certificates: Path | None
    """None: plaintext."""

    def address(self, port: str) -> str:
        if port == "kv":
            return f"127.0.0.1:{self.kv_port}"
        return self.stack.components[port].address

    def secrets(self, port: str) -> dict[str, str]:
        """Files of the role that may call there, and the name of the one that is called."""
        if self.certificates is None:
            return {}
        role, caller, _ = PORTS[port]
        own = self.certificates / caller
        ca = self.certificates / "ca.crt"
        return {"cert": f"{own}.crt", "key": f"{own}.key", "ca": str(ca), "name": f"{role}.tandem"}

    def grpcurl(self, port: str, *words: str, flags: tuple[str, ...] = ()) -> str:
        """What it prints. Raises CalledProcessError where it fails."""
        command = [program_or_skip("grpcurl"), f"-max-time={PATIENCE}", *flags]
        if secrets := self.secrets(port):
            names = {"cert": "cert", "key": "key", "ca": "cacert", "name": "servername"}
            command += [f"-{names[each]}={value}" for each, value in secrets.items()]
        else:
            command.append("-plaintext")
        command += [self.address(port), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=["plaintext", "TLS"])
def ports(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    certificates = None
    if request.param == "TLS":
        certificates = tmp_path_factory.mktemp("certificates") / "ours"
        assert main(["certificates", "--to", str(certificates)]) == 0
    with ExitStack() as held:
        kv_port = FreePorts(held).port()
        chosen = options(
            "sim",
            model_path,
            hook_prefill="",
            hook_decode="",
            flags={port.partition("-")[0]: ("--grpc-reflection",) for port in REFLECTING},
            engine_options=(f"kv_port={kv_port}",),
            certificates=certificates,
        )
        stack = held.enter_context(Stack(chosen, run_dir=tmp_path_factory.mktemp("stack")))
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Ports(stack, kv_port, certificates)


@pytest.mark.parametrize("port", REFLECTING)
def test_grpcurl_learns_what_a_port_serves(ports: Ports, port: str) -> None:
    service = PORTS[port][2]
    listed = ports.grpcurl(port, "list").split()
    assert {service, HEALTH} <= set(listed)
    assert f"{service}.Describe" in ports.grpcurl(port, "list", service).split()
    assert "rpc Connect ( stream" in ports.grpcurl(port, "describe", service)


@pytest.mark.parametrize("port", PORTS)
def test_grpcurl_is_told_how_a_port_is(ports: Ports, port: str, tmp_path: Path) -> None:
    """With a file of its own for what calls there are, as where a port tells nobody."""
    described = tmp_path / "described"
    files = FileDescriptorSet()
    health_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    described.write_bytes(files.SerializeToString())
    said = ports.grpcurl(port, f"{HEALTH}/Check", flags=(f"-protoset={described}",))
    assert json.loads(said) == {"status": "SERVING"}


def test_grpcurl_generates(ports: Ports) -> None:
    said = ports.grpcurl(
        "router", "tandem.v1.Router/Generate", flags=("-d", json.dumps({"task": TASK}))
    )
    answers = _objects(said)
    assert "".join(each.get("text", "") for each in answers)
    assert answers[-1]["finish"]["completion_tokens"] == 16


def test_grpcurl_is_told_why_a_request_is_refused(ports: Ports) -> None:
    asked = json.dumps({"task": TASK | {"model": "another"}})
    with pytest.raises(subprocess.CalledProcessError) as caught:
        ports.grpcurl("router", "tandem.v1.Router/Generate", flags=("-d", asked))
    assert "Code: NotFound" in caught.value.stderr
    assert "model_not_found" in caught.value.stderr


@pytest.mark.parametrize("port", PORTS)
async def test_a_stub_over_grpc_go_is_told_how_a_port_is(ports: Ports, port: str) -> None:
    async with GoChannel(ports.address(port), **ports.secrets(port)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        said = await stub.Check(asked, timeout=PATIENCE)
        assert said.status == health_pb2.HealthCheckResponse.SERVING
        watching = stub.Watch(asked)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()


async def test_a_stub_over_grpc_go_makes_every_call_of_a_router(ports: Ports) -> None:
    """One request is answered once, or by many; and of the streams of frontends one is opened."""
    sampling = common_pb2.SamplingParams(max_tokens=5, top_p=1.0)
    task = common_pb2.Task(model=MODEL, prompt_text="Hello", sampling=sampling, want_text=True)
    async with (
        asyncio.timeout(PATIENCE),
        GoChannel(ports.address("router"), **ports.secrets("router")) as channel,
    ):
        stub: Any = router_pb2_grpc.RouterStub(channel)
        described = await stub.Describe(router_pb2.DescribeRouterRequest(), timeout=PATIENCE)
        assert [each.name for each in described.models] == [MODEL]
        answers = [each async for each in stub.Generate(router_pb2.GenerateRequest(task=task))]
        assert answers[-1].finish.completion_tokens == 5
        connected = stub.Connect()
        await connected.write(router_pb2.FrontendMessage())
        assert [each.name for each in (await connected.read()).fleet.models] == [MODEL]
        connected.cancel()


def _objects(said: str) -> list[dict[str, Any]]:
    """JSON objects, one behind the other."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(said.rstrip()):
        found_one, place = decoder.raw_decode(said, place)
        found.append(found_one)
        while place < len(said) and said[place].isspace():
            place += 1
    return found
