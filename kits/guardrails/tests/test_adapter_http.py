"""The client of guardrail services is bounded in every direction and fails closed."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from guardrail_server import GuardrailServer, Reply, self_signed, serving

from tandem.errors import LoadError
from tandem.free_ports import FreePorts
from tandem.hooks.classifiers.contract import ScoringError
from tandem_guardrails.adapters.connection import AdapterConnection
from tandem_guardrails.adapters.connections import Connections
from tandem_guardrails.adapters.credentials import ApiKey
from tandem_guardrails.adapters.http import GuardrailClient, HttpOptions

BOUND = 60.0
KEY = "sk-very-secret"
BODY = b'{"text":"private words"}'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def client_of(
    url: str, *, key: ApiKey | None = None, clock: Clock | None = None, **options: Any
) -> AsyncIterator[GuardrailClient]:
    client = GuardrailClient(
        url,
        key=key or ApiKey(),
        options=HttpOptions.parse(options),
        clock=clock or time.monotonic,
    )
    try:
        yield client
    finally:
        await client.aclose()


async def reason_of(client: GuardrailClient, timeout_ms: float = 2000) -> str:
    """Of the failure of one call, which must come in time."""
    async with asyncio.timeout(BOUND):
        with pytest.raises(ScoringError) as caught:
            await client.post(BODY, timeout_ms=timeout_ms)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value.reason


@pytest.fixture
async def server() -> AsyncIterator[GuardrailServer]:
    async with serving() as running:
        yield running


# --- what is sent --------------------------------------------------------------------------------


async def test_the_body_and_the_key_arrive_as_they_are(
    server: GuardrailServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    server.reply = Reply(body={"fine": True})
    async with client_of(server.url + "/check", key=ApiKey(file=str(tmp_path / "key"))) as client:
        assert await client.post(BODY, timeout_ms=2000, headers={"x-more": "1"}) == {"fine": True}
    (request,) = server.requests
    assert (request.path, request.body) == ("/check", BODY)
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-more"] == "1"


async def test_connections_are_used_again(server: GuardrailServer) -> None:
    async with client_of(server.url) as client:
        for _ in range(5):
            await client.post(BODY, timeout_ms=2000)
    assert server.connections == 1


@pytest.mark.promise("S6-178")
async def test_nothing_of_a_call_is_logged(
    server: GuardrailServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARD_KEY", KEY)
    with caplog.at_level(logging.DEBUG):
        async with client_of(server.url, key=ApiKey(variable="GUARD_KEY")) as client:
            await client.post(BODY, timeout_ms=2000)
            server.reply = Reply(status=500, body="private words")
            await reason_of(client)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert not [record for record in caplog.records if record.name.startswith("http")]
    assert KEY not in caplog.text
    assert "private words" not in caplog.text


# --- what may come back --------------------------------------------------------------------------


@pytest.mark.promise("S6-176")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=500), "server_error"),
        (Reply(status=429), "rate_limited"),
        (Reply(status=400), "http_error"),
        (Reply(status=401), "refused"),
        (Reply(status=204, body=b""), "bad_answer"),
        (Reply(body="<html>"), "bad_answer"),
        (Reply(body=b"\xff\xfe\x00"), "bad_answer"),
        (Reply(body="null"), "bad_answer"),
        (Reply(body='{"score": NaN}'), "bad_answer"),
        (Reply(body='{"score": 1, "score": 0}'), "bad_answer"),
        (Reply(body='{"score": 0, "more": {"a": 1, "a": 1}}'), "bad_answer"),
        (Reply(body='{"score": 1'), "bad_answer"),
        (Reply(body="[" * 100_000), "bad_answer"),
        (Reply(body='{"n": ' + "9" * 5000 + "}"), "bad_answer"),
        (Reply(body={"text": "a" * 100}, cut_after=50), "broken_off"),
        (Reply(body={"text": "a" * 100}, cut_after=0), "broken_off"),
    ],
)
async def test_whatever_is_no_good_answer_is_a_failure_with_a_name(
    server: GuardrailServer, reply: Reply, reason: str
) -> None:
    server.reply = reply
    async with client_of(server.url) as client:
        assert await reason_of(client) == reason


@pytest.mark.promise("S6-176")
async def test_a_redirect_is_not_followed(server: GuardrailServer) -> None:
    async with serving() as elsewhere:
        server.reply = Reply(status=307, headers={"Location": elsewhere.url + "/"})
        async with client_of(server.url) as client:
            assert await reason_of(client) == "redirected"
        assert elsewhere.connections == 0


@pytest.mark.promise("S6-176")
async def test_an_answer_is_read_up_to_its_bound_and_no_further(server: GuardrailServer) -> None:
    server.reply = Reply(body=b"[" + b"1," * 5_000_000)
    async with client_of(server.url, max_response_bytes=10_000) as client:
        assert await reason_of(client) == "too_large"
        server.reply = Reply(body={"fine": True})
        assert await client.post(BODY, timeout_ms=2000) == {"fine": True}


@pytest.mark.promise("S6-176")
@pytest.mark.parametrize("body", [gzip.compress(b" " * 10_000_000), b"{}"])
async def test_an_answer_that_says_it_is_compressed_is_not_unpacked(
    server: GuardrailServer, body: bytes
) -> None:
    server.reply = Reply(body=body, headers={"Content-Encoding": "gzip"})
    async with client_of(server.url) as client:
        assert await reason_of(client) == "bad_answer"
    assert server.requests[0].headers["accept-encoding"] == "identity"


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trickle", [False, True])
async def test_a_slow_service_is_given_up_before_the_classifiers_timeout(
    server: GuardrailServer, trickle: bool
) -> None:
    never = asyncio.Event()
    server.reply = Reply(trickle=True) if trickle else Reply(after=never)
    async with client_of(server.url) as client:
        began = time.perf_counter()
        assert await reason_of(client, timeout_ms=200) == "timeout"
        assert time.perf_counter() - began >= 0.15
    never.set()


async def test_a_cancelled_call_gives_its_connection_back(server: GuardrailServer) -> None:
    never = asyncio.Event()
    server.reply = Reply(after=never)
    async with client_of(server.url, max_connections=1) as client:
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(client.post(BODY, timeout_ms=4000))
            await server.wait_for(1)
            call.cancel()
        server.reply = Reply(body={"fine": True})
        assert await client.post(BODY, timeout_ms=2000) == {"fine": True}
    never.set()


async def test_calls_beyond_the_connections_wait_within_their_timeout(
    server: GuardrailServer,
) -> None:
    gate = asyncio.Event()
    server.reply = Reply(after=gate, body={"fine": True})
    async with client_of(server.url, max_connections=2) as client, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(client.post(BODY, timeout_ms=4000)) for _ in range(2)]
        await server.wait_for(2)
        assert await reason_of(client, timeout_ms=100) in ("busy", "timeout")
        gate.set()
    assert [call.result() for call in calls] == [{"fine": True}] * 2
    assert server.connections == 2


# --- a service that is down ----------------------------------------------------------------------


async def test_nobody_listening_is_unreachable_and_soon_known(free: FreePorts) -> None:
    clock = Clock()
    url = f"http://{free.address()}"
    async with client_of(url, clock=clock, circuit_failures=2) as client:
        assert await reason_of(client) == "unreachable"
        assert await reason_of(client) == "unreachable"
        assert await reason_of(client) == "circuit_open"


async def test_the_circuit_opens_and_one_probe_closes_it(server: GuardrailServer) -> None:
    clock = Clock()
    server.reply = Reply(status=503)
    async with client_of(
        server.url, clock=clock, circuit_failures=3, circuit_open_ms=1000
    ) as client:
        for _ in range(3):
            assert await reason_of(client) == "server_error"
        assert await reason_of(client) == "circuit_open"
        assert len(server.requests) == 3
        clock.now = 1.0
        assert await reason_of(client) == "server_error"
        assert await reason_of(client) == "circuit_open"
        clock.now = 2.0
        server.reply = Reply(body={"fine": True})
        for _ in range(3):
            assert await client.post(BODY, timeout_ms=2000) == {"fine": True}
    assert len(server.requests) == 7


async def test_requests_that_are_refused_do_not_open_the_circuit(server: GuardrailServer) -> None:
    server.reply = Reply(status=400)
    async with client_of(server.url, circuit_failures=2) as client:
        for _ in range(4):
            assert await reason_of(client) == "http_error"


async def test_only_connecting_is_tried_again(
    server: GuardrailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    connect = Connections._try

    async def flaky(connections: Connections) -> AdapterConnection:
        attempts.append("connect")
        if len(attempts) == 1:
            raise ConnectionRefusedError
        return await connect(connections)

    monkeypatch.setattr(Connections, "_try", flaky)
    async with client_of(server.url) as client:
        await client.post(BODY, timeout_ms=2000)
        assert (len(attempts), len(server.requests)) == (2, 1)
        server.reply = Reply(cut_after=0, body={"x": 1})
        assert await reason_of(client) == "broken_off"
        server.reply = Reply(status=503)
        assert await reason_of(client) == "server_error"
    assert (len(attempts), len(server.requests)) == (3, 3)


# --- keys ----------------------------------------------------------------------------------------


async def test_a_renewed_key_is_read_after_a_refusal(
    server: GuardrailServer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("old")
    async with client_of(server.url, key=ApiKey(file=str(file))) as client:
        file.write_text("new")
        server.reply = Reply(status=401)
        assert await reason_of(client) == "refused"
        file.unlink()
        assert await reason_of(client) == "refused"  # and what it knows stays
        server.reply = Reply()
        await client.post(BODY, timeout_ms=2000)
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer old",
        "Bearer new",
        "Bearer new",
    ]


@pytest.mark.parametrize("content", ["", "  \n", "two words", "ключ", "a\x07b"])
def test_a_file_without_a_key_stops_the_worker(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(LoadError) as caught:
        ApiKey(file=str(file))
    assert not content.strip() or content.strip() not in str(caught.value)


def test_a_key_that_is_not_there_stops_the_worker(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        ApiKey(file=str(tmp_path / "absent"))
    with pytest.raises(LoadError, match="GUARD_KEY_ABSENT"):
        ApiKey(variable="GUARD_KEY_ABSENT")
    with pytest.raises(LoadError, match="give one"):
        ApiKey(file="a", variable="b")


@pytest.mark.promise("S6-178")
def test_a_key_does_not_show_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_KEY", KEY)
    assert KEY not in repr(ApiKey(variable="GUARD_KEY"))


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", "localhost:80", "ftp://host", "http://", "http://host:port", "https://u:p@host",
     "http://host/?key=1", "http://host/#x", 7],
)  # fmt: skip
def test_a_url_that_cannot_be_used_or_holds_a_secret_stops_the_worker(url: Any) -> None:
    with pytest.raises(LoadError, match="url must"):
        GuardrailClient(url, key=ApiKey(), options=HttpOptions())


@pytest.mark.parametrize(
    "http",
    [{"retries": 1}, {"max_connections": 0}, {"connect_timeout_ms": 0.5}, {"ca_file": 7},
     {"max_response_bytes": True}, {"connect_retries": -1}],
)  # fmt: skip
def test_a_wrong_http_setting_stops_the_worker(http: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="http"):
        HttpOptions.parse(http)


# --- TLS -----------------------------------------------------------------------------------------


@pytest.mark.promise("S6-178")
async def test_a_certificate_of_an_unknown_authority_is_refused_and_of_a_named_one_taken(
    tmp_path: Path,
) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with serving(tls) as server:
        server.reply = Reply(body={"fine": True})
        async with client_of(server.url) as client:
            assert await reason_of(client) == "unreachable"
        assert server.requests == []
        async with client_of(server.url, ca_file=str(certificate[0])) as client:
            assert await client.post(BODY, timeout_ms=2000) == {"fine": True}


def test_a_ca_file_that_is_not_there_stops_the_worker(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be used"):
        GuardrailClient(
            "https://host",
            key=ApiKey(),
            options=HttpOptions.parse({"ca_file": str(tmp_path / "absent")}),
        )
