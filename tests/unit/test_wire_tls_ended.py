"""A certificate that has ended, or whose CA was replaced, opens nothing and keeps nothing open."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from authority import Authority, Files
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from raw_peer import Peer
from test_wire_tls import PATIENCE, ask, dial, serving, tls

from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.wire import grpc as wire
from tandem.wire import standing
from tandem.wire.tls import PeerTls
from tandem_loop_grpc.frames import (
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    Code,
    settings,
)

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
OPTIONS = [("grpc.ssl_target_name_override", "router.tandem")]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "strangers")


def client_context(files: Files, protocols: Sequence[str] = ("h2",)) -> ssl.SSLContext:
    """Of a client that trusts every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(files.cert, files.key)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols([*protocols])
    return context


class Resumer:
    """A client that brings the session of its last connection back, as attackers' do."""

    def __init__(self, files: Files, version: ssl.TLSVersion) -> None:
        self._context = client_context(files)
        self._context.maximum_version = self._context.minimum_version = version
        self._session: ssl.SSLSession | None = None

    async def dial(self, address: str) -> str:
        """How the server takes it: "refused", "taken", or "resumed"."""
        return await asyncio.to_thread(self._dial, address)

    def _dial(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as plain:
            try:
                with self._context.wrap_socket(plain, session=self._session) as wrapped:
                    wrapped.sendall(PREFACE)
                    if not wrapped.recv(1024):  # tickets come before the first byte
                        return "refused"
                    self._session = wrapped.session
                    return "resumed" if wrapped.session_reused else "taken"
            except (ssl.SSLError, ConnectionError):
                return "refused"


@pytest.mark.promise("S6-160", "S6-420")
@pytest.mark.parametrize("version", VERSIONS, ids=lambda each: each.name)
async def test_a_session_is_never_resumed(
    authority: Authority, stranger: Authority, version: ssl.TLSVersion
) -> None:
    """Its server would not look at the client's certificate again."""
    files, theirs = authority.issue(), authority.issue("frontend.tandem")
    taken = "taken" if version is ssl.TLSVersion.TLSv1_3 else "refused"
    async with serving(tls(files)) as address:
        client = Resumer(theirs, version)
        assert [await client.dial(address) for _ in range(3)] == [taken] * 3
        files.replace_by(stranger.issue())
        assert await client.dial(address) == "refused"


@pytest.mark.promise("S6-420")
async def test_tls_1_2_opens_no_port_between_components(authority: Authority) -> None:
    files = authority.issue()
    async with serving(tls(files)) as address:
        assert await Resumer(files, ssl.TLSVersion.TLSv1_2).dial(address) == "refused"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(files.cert, files.key)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    serves = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=old)
    async with serves:
        port = serves.sockets[0].getsockname()[1]
        assert await dial(f"127.0.0.1:{port}", tls(files)) is grpc.StatusCode.UNAVAILABLE


async def last_words(files: Files, address: str, protocols: list[str], *said: bytes) -> Code:
    """The code by which a server ends the connection of that certificate."""
    context = client_context(files, protocols)
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    peer = Peer(reader, writer)
    try:
        async with asyncio.timeout(PATIENCE):
            peer.send(PREFACE, *said)
            ended = await peer.ending()
    finally:
        await peer.close()
    assert ended is not None
    return Code(ended)


@pytest.mark.promise("S6-403")
@pytest.mark.parametrize("protocols", [[], ["http/1.1"]], ids=["none", "http/1.1"])
async def test_a_connection_that_agreed_on_no_h2_is_refused(
    authority: Authority, protocols: list[str]
) -> None:
    files = authority.issue()
    async with serving(tls(files)) as address:
        assert await last_words(files, address, protocols) is Code.INADEQUATE_SECURITY
        assert await dial(address, tls(files)) is grpc.StatusCode.OK


@pytest.mark.promise("S6-400")
async def test_a_flood_by_a_wrong_role_ends_itself_and_nobody_else(authority: Authority) -> None:
    """While gRPC's own core has the server serve it."""
    ours, wrong, right = (authority.issue(*each) for each in ((), ("prefill.tandem",), ()))
    pem = [each.read_bytes() for each in (right.ca, right.key, right.cert)]
    async with serving(tls(ours)) as address:
        credentials = grpc.ssl_channel_credentials(*pem)
        async with grpc.aio.secure_channel(address, credentials, options=OPTIONS) as channel:
            assert await ask(channel) is grpc.StatusCode.OK
            flood = settings({INITIAL_WINDOW_SIZE: 1}) * 2_000
            ended = await last_words(wrong, address, ["h2"], flood)
            assert ended is Code.ENHANCE_YOUR_CALM
            assert await ask(channel) is grpc.StatusCode.OK


@pytest.mark.promise("S6-400")
async def test_a_server_stops_beside_a_client_that_it_cut_off_and_that_stays(
    authority: Authority,
) -> None:
    files = authority.issue()
    async with serving(tls(files)) as address:
        client = await asyncio.to_thread(cut_off, files, address)
    client.close()


def cut_off(files: Files, address: str) -> ssl.SSLSocket:
    """A client that has read why it is cut off, and does not close its end."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=PATIENCE)
    client = client_context(files).wrap_socket(plain)
    client.sendall(PREFACE + settings({INITIAL_WINDOW_SIZE: 1}) * 2_000)
    with client.makefile("rb") as read:
        kind = None
        while kind != GOAWAY:
            upper, lower, kind, _, _ = HEAD.unpack(read.read(HEAD_BYTES))
            read.read((upper << 8) | lower)
    return client


async def test_grpcs_own_client_and_server_are_understood(authority: Authority) -> None:
    ours, theirs = authority.issue(), authority.issue()
    pem = [each.read_bytes() for each in (theirs.ca, theirs.key, theirs.cert)]
    async with serving(tls(ours)) as address:
        credentials = grpc.ssl_channel_credentials(*pem)
        async with grpc.aio.secure_channel(address, credentials, options=OPTIONS) as channel:
            assert await ask(channel) is grpc.StatusCode.OK
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    demanding = grpc.ssl_server_credentials([(pem[1], pem[2])], pem[0], require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", demanding)
    await server.start()
    try:
        assert await dial(f"127.0.0.1:{port}", tls(ours)) is grpc.StatusCode.OK
    finally:
        await server.stop(None)


@asynccontextmanager
async def streaming(server: PeerTls, client: PeerTls) -> AsyncIterator[Any]:
    """A stream that has begun, and would go on for ever."""
    async with serving(server) as address, wire.open_channel(address, client) as channel:
        call: Any = worker_pb2_grpc.WorkerStub(channel).Connect()
        await call.write(worker_pb2.WorkerCommand())
        await call.read()
        yield call
        call.cancel()


async def ended(call: Any) -> str:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await call.read()
    assert found.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(found.value.details())


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "LOOK_SECONDS", 0.01)


@pytest.mark.promise("S6-421")
@pytest.mark.parametrize("end", ["server", "client"])
@pytest.mark.usefixtures("looks_often")
async def test_a_stream_ends_with_the_ca_of_its_peer(
    authority: Authority, stranger: Authority, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = {"server": authority.issue(), "client": authority.issue()}
    server, client = tls(ends["server"]), tls(ends["client"])
    async with streaming(server, client) as call:
        ends[end].replace_by(stranger.issue())
        await ended(call)
    (line,) = [each for each in caplog.records if each.name == standing.__name__]
    assert line.__dict__["reason"] == "the CA of the peer's certificate was replaced"
    assert "127.0.0.1" in line.__dict__["peer"]


@pytest.mark.promise("S6-421")
@pytest.mark.usefixtures("looks_often")
async def test_a_stream_ends_with_the_certificate_of_its_peer(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = datetime.now(UTC) + timedelta(days=2)
    async with streaming(tls(authority.issue()), tls(authority.issue())) as call:
        monkeypatch.setattr(standing, "now", lambda: later)
        await ended(call)


@pytest.mark.promise("S6-421")
async def test_a_good_certificate_keeps_its_stream(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that was renewed, and a CA beside which another is believed."""
    looks = asyncio.Semaphore(0)

    def look(*arguments: Any) -> str:
        reason = standing.__dict__["looked"](*arguments)
        looks.release()
        return str(reason)

    monkeypatch.setattr(standing, "looked", standing.why_refused, raising=False)
    monkeypatch.setattr(standing, "why_refused", look)
    monkeypatch.setattr(standing, "LOOK_SECONDS", 0.01)
    files = authority.issue()
    async with streaming(tls(files), tls(authority.issue())) as call:
        renewed = authority.issue()
        renewed.ca.write_bytes(files.ca.read_bytes() + stranger.issue().ca.read_bytes())
        files.replace_by(renewed)
        async with asyncio.timeout(PATIENCE):
            for _ in range(8):
                await looks.acquire()
            await call.write(worker_pb2.WorkerCommand())
            assert (await call.read()).load.open_legs == 1


async def test_a_connection_is_looked_at_in_turns_of_the_loop(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a thousand, none but a few in one."""
    caplog.set_level(logging.ERROR)
    looked: list[int] = []

    class Seen:
        over = False

        @property
        def security(self) -> None:
            looked[-1] += 1

    looked.append(0)
    standing._look_at([Seen()] * 200, tls(authority.issue()))  # type: ignore[list-item]
    while sum(looked) < 200:
        looked.append(0)
        await asyncio.sleep(0)
    assert max(looked) <= 64
