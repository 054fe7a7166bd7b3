"""The limits that a deployment sets on its clients: keys, sizes, times, what they may ask for."""

from __future__ import annotations

import asyncio

import pytest
from harness import CHAT, PATIENCE, Start, error_of, request_bytes, say_hello


@pytest.mark.promise("S6-151")
async def test_only_the_right_key_opens_the_api(start: Start) -> None:
    frontend = await start(say_hello, api_keys=("first-key", "second-key"))
    assert (await frontend.chat()).status_code == 200
    for headers in (
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer"},
        {"authorization": ""},
        {"authorization": "Bearer ü".encode()},
    ):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            response = await frontend.http.post(path, json=CHAT, headers=headers)
            assert error_of(response) == (401, "invalid_api_key", None)
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await frontend.http.get("/v1/models", headers=headers)).status_code == 401
        for path in ("/health", "/live", "/ready", "/version"):
            assert (await frontend.http.get(path, headers=headers)).status_code == 200
    refused = await frontend.metric("tandem_frontend_requests_total", outcome="invalid_api_key")
    assert refused == 20
    second = await frontend.http.get("/v1/models", headers={"authorization": "bearer second-key"})
    assert second.status_code == 200


KEY = "sk-first-0123456789"
LIVE = b"GET /live HTTP/1.1\r\nhost: test\r\n\r\n"
NEARLY = {
    "its first half": KEY[: len(KEY) // 2],
    "all but its last byte": KEY[:-1],
    "all but its first byte": KEY[1:],
    "a wrong end": KEY[:-1] + "x",
    "a wrong middle": KEY[:9] + "x" + KEY[10:],
    "a byte too many": KEY + "x",
    "a byte too many in front": "x" + KEY,
    "the key twice": KEY + KEY,
    "both keys": f"{KEY},other-key",
    "both keys with a space": f"{KEY} other-key",
    "upper case": KEY.upper(),
    "its bytes in another order": "".join(sorted(KEY)),
    "the end of one key after the beginning of another": KEY[:9] + "other-key",
    "quotes around it": f'"{KEY}"',
}


@pytest.mark.promise("S6-151")
@pytest.mark.parametrize("keys", [(KEY, "a", "other-key"), ("other-key", "a", KEY)])
async def test_each_key_opens_and_is_compared_as_a_whole(
    start: Start, keys: tuple[str, ...]
) -> None:
    frontend = await start(say_hello, api_keys=keys)

    async def opens(authorization: str) -> bool:
        headers = {"authorization": authorization}
        response = await frontend.http.get("/v1/models", headers=headers)
        return response.status_code == 200 or error_of(response)[1] != "invalid_api_key"

    for given in (*keys, f" {KEY}"):
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert await opens(f"{scheme} {given}")
    assert [name for name, given in NEARLY.items() if await opens(f"Bearer {given}")] == []


@pytest.mark.promise("S6-151")
async def test_an_empty_key_opens_nothing(start: Start) -> None:
    frontend = await start(say_hello, api_keys=(KEY, ""))
    for given in (b"Bearer", b"Bearer ", b"Bearer  ", b"", b" "):
        head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n\r\n" % given
        assert (await frontend.raw(head)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.promise("S6-137")
async def test_a_body_that_says_it_is_too_large_is_refused_unread(start: Start) -> None:
    frontend = await start(say_hello, max_body_bytes=1000)
    reader, writer = await frontend.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{"
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    writer.close()
    response = await frontend.complete(prompt="x" * 2000)
    assert error_of(response) == (413, "request_too_large", None)


@pytest.mark.promise("S6-137")
async def test_too_many_headers_are_refused(start: Start) -> None:
    frontend = await start(say_hello, max_header_bytes=2000)
    whole = b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 3000 + b"\r\n\r\n"
    assert (await frontend.raw(whole, until_closed=True)).startswith(b"HTTP/1.1 431 ")
    endless = b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 3000
    assert (await frontend.raw(endless, until_closed=True)).startswith(b"HTTP/1.1 431 ")
    fine = await frontend.http.get("/health", headers={"x-long": "y" * 1000})
    assert fine.status_code == 200


@pytest.mark.promise("S6-138")
@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/comp", b"\r\n", request_bytes(b"{}" * 9)[:-5], LIVE + b"POST /v1/comp"],
    ids=["nothing", "half a head", "an empty line", "half a body", "half of a further request"],
)
async def test_a_client_that_does_not_finish_its_request_is_sent_away(
    start: Start, sent: bytes
) -> None:
    frontend = await start(say_hello, receive_timeout_seconds=0.2)
    answer = await frontend.raw(sent, until_closed=True)
    assert answer.startswith(b"HTTP/1.1 200 ") == sent.startswith(LIVE)
    assert answer.count(b"HTTP/1.1 408 ") == answer.count(b'"code":"receive_timeout"') == 1


@pytest.mark.promise("S6-143")
async def test_client_processors_need_the_deployments_and_the_fleets_consent(
    start: Start,
) -> None:
    frontend = await start(say_hello, client_logits_processors=("other", "unheard_of"))
    good = await frontend.chat(logits_processors=[{"name": "other"}])
    assert good.status_code == 200
    for name in ("unheard_of", "forced_sequence"):
        response = await frontend.chat(logits_processors=[{"name": "other"}, {"name": name}])
        assert error_of(response) == (400, "unsupported_parameter", "logits_processors[1].name")
