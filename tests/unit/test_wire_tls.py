"""Mutual TLS of gRPC: who is let in, who is believed, and what a renewal changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from authority import Authority, Files
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from tandem.errors import ConfigError
from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.wire import grpc as wire
from tandem.wire.tls import ROLES, PeerRole, PeerTls
from tandem.worker.config import WorkerConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig

PATIENCE = 60.0
REFUSED = grpc.StatusCode.UNAVAILABLE
FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED
MAY_CALL: dict[PeerRole, PeerRole | None] = {
    "router": "frontend",
    "prefill": "router",
    "decode": "router",
    "frontend": None,
}


@dataclass(frozen=True)
class Settings:
    tls_cert: str
    tls_key: str
    tls_ca: str
    tls_peer_name: str = "tandem"


def tls(files: Files, **changes: Any) -> PeerTls:
    paths = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
    settings = Settings(**{name: str(path) for name, path in paths.items()} | changes)
    made = PeerTls.of(settings)
    assert made is not None
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "strangers")


class _Worker(worker_pb2_grpc.WorkerServicer):
    """Answers each command with a frame."""

    async def Connect(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield worker_pb2.WorkerFrame(load=worker_pb2.Load(open_legs=1))


@asynccontextmanager
async def serving(
    credentials: PeerTls | None, caller: PeerRole | None = "frontend"
) -> AsyncIterator[str]:
    server = wire.Server(credentials, caller=caller, reflects=True)
    server.add(
        lambda into: worker_pb2_grpc.add_WorkerServicer_to_server(_Worker(), into),
        "tandem.v1.Worker",
    )
    port = await server.start("127.0.0.1:0")
    await server.set_serving(True)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        await asyncio.sleep(0.05)  # asyncio closes what failed its handshake a moment later


async def ask(channel: grpc.aio.Channel) -> grpc.StatusCode:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def dial(
    address: str, credentials: PeerTls | None, role: PeerRole = "router"
) -> grpc.StatusCode:
    async with wire.open_channel(address, credentials, role=role) as channel:
        return await ask(channel)


def issued(authority: Authority, *names: str) -> PeerTls:
    return tls(authority.issue(*names))


async def test_peers_of_one_ca_stream_to_each_other(authority: Authority) -> None:
    async with (
        serving(tls(authority.issue())) as address,
        wire.open_channel(address, tls(authority.issue())) as channel,
    ):
        call: Any = worker_pb2_grpc.WorkerStub(channel).Connect()
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                await call.write(worker_pb2.WorkerCommand())
                assert (await call.read()).load.open_legs == 1
        call.cancel()


@pytest.mark.promise("S6-157")
async def test_a_client_without_our_certificate_is_refused(
    authority: Authority, stranger: Authority
) -> None:
    ours, theirs = authority.issue(), stranger.issue()
    async with serving(tls(ours)) as address:
        assert await dial(address, None) is REFUSED
        # It trusts our CA, and has nothing, or another CA's certificate, to show.
        assert await dial(address, tls(Files(theirs.cert, theirs.key, ours.ca))) is REFUSED
        root = grpc.ssl_channel_credentials(ours.ca.read_bytes())
        options = [("grpc.ssl_target_name_override", "router.tandem")]
        async with grpc.aio.secure_channel(address, root, options=options) as channel:
            assert await ask(channel) is REFUSED
        assert await dial(address, tls(ours)) is grpc.StatusCode.OK


@pytest.mark.promise("S6-158")
async def test_a_server_of_another_ca_or_name_or_without_tls_is_not_believed(
    authority: Authority, stranger: Authority
) -> None:
    ours = authority.issue()
    impostor = stranger.issue()
    async with serving(tls(Files(impostor.cert, impostor.key, ours.ca))) as address:
        assert await dial(address, tls(ours)) is REFUSED
    async with serving(
        tls(authority.issue("router.other.example"), tls_peer_name="other.example"), "router"
    ) as address:
        assert await dial(address, tls(ours)) is REFUSED
        other = tls(authority.issue("router.other.example"), tls_peer_name="other.example")
        assert await dial(address, other) is grpc.StatusCode.OK
    async with serving(None) as address:
        assert await dial(address, tls(ours)) is REFUSED


@pytest.mark.promise("S6-157")
@pytest.mark.parametrize("server", MAY_CALL)
@pytest.mark.parametrize("caller", ROLES)
async def test_a_server_answers_the_role_that_may_call_it_and_no_other(
    authority: Authority, caller: PeerRole, server: PeerRole
) -> None:
    allowed = MAY_CALL[server]
    credentials = issued(authority, f"{server}.tandem")
    async with serving(credentials, allowed) as address:
        answer = await dial(address, issued(authority, f"{caller}.tandem"), server)
    assert answer is (grpc.StatusCode.OK if caller == allowed else FORBIDDEN)


@pytest.mark.promise("S6-157")
@pytest.mark.parametrize(
    "names",
    [
        ("tandem",),
        ("*.tandem",),
        ("frontend",),
        ("frontend.tandem.example",),
        ("xfrontend.tandem",),
        ("frontend.other",),
        ("router.tandem", "prefill.tandem", "decode.tandem"),
    ],
    ids=" ".join,
)
async def test_what_only_looks_like_a_role_is_none(
    authority: Authority, names: tuple[str, ...]
) -> None:
    async with serving(issued(authority, "router.tandem"), "frontend") as address:
        assert await dial(address, issued(authority, *names)) is FORBIDDEN


@pytest.mark.parametrize("other", ["decode.tandem", "decode.tandem,email:frontend.tandem"])
async def test_names_of_other_kinds_give_no_role(authority: Authority, other: str) -> None:
    """The common name, which authority.issue makes of its first name, and others."""
    caller = authority.issue("frontend.tandem", alternative_names=(other,))
    async with serving(issued(authority, "router.tandem"), "frontend") as address:
        assert await dial(address, tls(caller)) is FORBIDDEN


@pytest.mark.promise("S6-157")
async def test_the_wrong_role_gets_nothing_of_any_kind_of_call(authority: Authority) -> None:
    """Neither a stream, nor health in either form, nor reflection, nor what is not there. Streams
    send nothing: what is sent to a call that was refused already may fail first.
    """
    async with (
        serving(issued(authority, "decode.tandem"), "router") as address,
        wire.open_channel(address, issued(authority, "frontend.tandem"), role="decode") as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        worker: Any = worker_pb2_grpc.WorkerStub(channel)
        for call in (
            worker.Connect(timeout=PATIENCE),
            health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE),
            reflected.ServerReflectionInfo(timeout=PATIENCE),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is FORBIDDEN
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await worker.Describe(worker_pb2.DescribeWorkerRequest(), timeout=PATIENCE)
        assert refused.value.code() is FORBIDDEN
        assert "router.tandem" in (refused.value.details() or "")


@pytest.mark.promise("S6-147")
async def test_refused_callers_are_named_in_the_log_and_cannot_fill_it(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    stray = issued(authority, "decode.tandem")
    async with serving(issued(authority, "router.tandem"), "frontend") as address:
        for _ in range(8):
            assert await dial(address, stray) is FORBIDDEN
    lines = [each for each in caplog.records if each.name == "tandem.wire.callers"]
    assert [each.message for each in lines] == [
        *["call refused: wrong role"] * 5,
        "call refused: wrong role: more of the same",
    ]
    assert lines[0].__dict__["reason"] == "the certificate names decode.tandem"
    assert lines[-1].__dict__["count"] == 3


@pytest.mark.promise("S6-158")
@pytest.mark.parametrize("role", ROLES)
async def test_a_server_of_another_role_is_not_believed(
    authority: Authority, role: PeerRole
) -> None:
    """A component that was taken over cannot take another's place."""
    async with serving(issued(authority, f"{role}.tandem")) as address:
        for wanted in ROLES:
            answer = await dial(address, issued(authority, "frontend.tandem"), wanted)
            assert answer is (grpc.StatusCode.OK if wanted == role else REFUSED)


@pytest.mark.promise("S6-160")
async def test_a_certificate_that_has_ended_opens_nothing(authority: Authority) -> None:
    ended = authority.issue("frontend.tandem", days=-1)
    async with serving(issued(authority, "router.tandem"), "frontend") as address:
        assert await dial(address, tls(ended)) is REFUSED
    async with serving(tls(authority.issue("router.tandem", days=-1)), "frontend") as address:
        assert await dial(address, issued(authority, "frontend.tandem")) is REFUSED


async def test_a_renewal_takes_effect_at_the_next_dial_and_leaves_open_streams_alone(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The CA is replaced as well: who holds only the old one is a stranger from then on."""
    caplog.set_level(logging.INFO)
    servers, clients, old = authority.issue(), authority.issue(), authority.issue()
    server, client = tls(servers), tls(clients)
    async with serving(server) as address, wire.open_channel(address, client) as before:
        call: Any = worker_pb2_grpc.WorkerStub(before).Connect()
        await call.write(worker_pb2.WorkerCommand())
        await call.read()
        servers.replace_by(stranger.issue())
        clients.replace_by(stranger.issue())
        assert await dial(address, client) is grpc.StatusCode.OK
        assert await dial(address, tls(old)) is REFUSED
        async with asyncio.timeout(PATIENCE):
            await call.write(worker_pb2.WorkerCommand())
            assert (await call.read()).load.open_legs == 1
        call.cancel()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "certificate renewed"
    ] * 2


async def test_every_server_of_a_component_takes_a_renewal_in(
    authority: Authority, stranger: Authority
) -> None:
    """A prefill worker has two: whichever is dialled first must not take it for both."""
    files, client = authority.issue(), authority.issue()
    credentials = tls(files)
    async with serving(credentials) as one, serving(credentials) as other:
        files.replace_by(stranger.issue())
        client.replace_by(stranger.issue())
        for address in (one, other):
            assert await dial(address, tls(client)) is grpc.StatusCode.OK


@pytest.mark.promise("S6-160")
async def test_half_a_renewal_changes_nothing(authority: Authority) -> None:
    files = authority.issue()
    server = tls(files)
    async with serving(server) as address:
        files.key.write_bytes(authority.issue().key.read_bytes())
        assert await dial(address, tls(authority.issue())) is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("model", "required"),
    [
        (FrontendConfig, {"model_path": "m"}),
        (RouterConfig, {}),
        (WorkerConfig, {"model_path": "m"}),
    ],
)
def test_half_of_the_settings_is_refused(model: Any, required: dict[str, Any]) -> None:
    if model is WorkerConfig:
        required = {"model_path": Path("m")}
    for given in ({"tls_cert": "a"}, {"tls_ca": "a"}, {"tls_cert": "a", "tls_key": "b"}):
        with pytest.raises(ConfigError, match="tls_cert, tls_key and tls_ca"):
            model(**required, **given)
    whole = {"tls_cert": "a", "tls_key": "b", "tls_ca": "c"}
    with pytest.raises(ConfigError, match="tls_peer_name"):
        model(**required, **whole, tls_peer_name="")
    model(**required, **whole)
    assert PeerTls.of(model(**required)) is None


def test_half_of_the_https_settings_is_refused() -> None:
    for given in ({"https_cert": "a"}, {"https_key": "b"}):
        with pytest.raises(ConfigError, match="https_cert and https_key"):
            FrontendConfig(model_path="m", **given)


async def test_a_bundle_of_the_old_and_the_new_ca_lets_peers_go_over_one_by_one(
    authority: Authority, stranger: Authority
) -> None:
    old, new = authority.issue(), stranger.issue()
    bundle = old.ca.read_bytes() + new.ca.read_bytes()
    for files in (old, new):
        files.ca.write_bytes(bundle)
    for serves, dials in ((old, new), (new, old)):
        async with serving(tls(serves)) as address:
            assert await dial(address, tls(dials)) is grpc.StatusCode.OK
