"""What pages in a browser may ask: nothing of a local server without keys, and of any server only
what the operator allowed their origin.
"""

from __future__ import annotations

import pytest
from harness import CHAT, Start, error_of, events, request_bytes, say_hello, stream_text

from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig

ORIGIN = "https://app.example"
LOCAL = (
    "localhost", "LOCALHOST:8000", "api.localhost", "127.0.0.1", "127.0.0.1:1", "127.9.9.9",
    "[::1]", "[::1]:8000",
)  # fmt: skip
FOREIGN = (
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
    "evil-localhost", "192.168.0.1", "0.0.0.0", "[::]", "[fe80::1]", "", "2130706433",
)  # fmt: skip


@pytest.mark.promise("S6-150")
async def test_a_local_server_without_keys_answers_to_local_names_only(start: Start) -> None:
    frontend = await start(say_hello, allowed_hosts=("forwarded.example",))
    for path in ("/v1/models", "/live", "/openapi.json", "/nothing"):
        for host in (*LOCAL, "forwarded.example", "Forwarded.Example:443"):
            response = await frontend.http.get(path, headers={"host": host})
            assert response.status_code == (404 if path == "/nothing" else 200), host
        for host in FOREIGN:
            response = await frontend.http.get(path, headers={"host": host})
            assert error_of(response) == (403, "host_not_allowed", None), host


@pytest.mark.promise("S6-150")
async def test_a_local_server_without_keys_takes_json_alone(start: Start) -> None:
    """A page may send anything else to another origin without asking."""
    frontend = await start(say_hello, allowed_hosts=())
    forms = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x")
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        for kind in (*forms, "", "json", None):
            headers = {} if kind is None else {"content-type": kind}
            response = await frontend.http.post(path, content=b"{}", headers=headers)
            assert error_of(response) == (415, "unsupported_media_type", None)
        for kind in ("application/json", "Application/JSON; charset=utf-8"):
            headers = {"content-type": kind}
            response = await frontend.http.post(path, content=b"{}", headers=headers)
            assert response.status_code == 400
    # A method that a path does not have is told before the kind of its body.
    assert error_of(await frontend.http.post("/version")) == (405, "method_not_allowed", None)
    assert error_of(await frontend.http.post("/nothing")) == (404, "not_found", None)


async def test_the_description_says_of_what_kind_each_answer_is(start: Start) -> None:
    frontend = await start(say_hello)
    described = (await frontend.http.get("/openapi.json")).json()["paths"]
    for path in ("/docs", "/version", "/live", "/v1/models"):
        kinds = described[path]["get"]["responses"]["200"]["content"]
        assert [*kinds] == [(await frontend.http.get(path)).headers["content-type"]]


@pytest.mark.parametrize("open_to_all", [{"api_keys": ("key",)}, {"allowed_hosts": ("*",)}])
async def test_other_servers_answer_to_any_name(
    start: Start, open_to_all: dict[str, tuple[str, ...]]
) -> None:
    frontend = await start(say_hello, **{"allowed_hosts": (), **open_to_all})
    for host in FOREIGN:
        response = await frontend.http.get("/v1/models", headers={"host": host})
        assert response.status_code == 200
    head = b"authorization: Bearer key\r\n"
    body = b'{"prompt":"Hello","model":"tandem-tiny"}'
    asked = request_bytes(body, path="/v1/completions", head=head)
    assert (await frontend.raw(asked)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("S6-150")
async def test_no_page_may_read_an_answer_by_default(start: Start) -> None:
    frontend = await start(say_hello)
    response = await frontend.http.post(
        "/v1/chat/completions", json=CHAT, headers={"origin": ORIGIN}
    )
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    response = await frontend.http.options("/v1/chat/completions", headers=asked)
    assert error_of(response) == (405, "method_not_allowed", None)


async def test_a_named_origin_may_ask_and_read_whatever_the_answer(start: Start) -> None:
    frontend = await start(say_hello, cors_origins=("http://localhost:3000", ORIGIN))
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }
    response = await frontend.http.options("/v1/chat/completions", headers=asked)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert response.headers["access-control-allow-methods"] == "POST"
    assert (
        response.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    )
    for stream in (False, True):
        response = await frontend.http.post(
            "/v1/chat/completions", json=CHAT | {"stream": stream}, headers={"origin": ORIGIN}
        )
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert response.headers["vary"] == "origin"
    assert stream_text(events(response.text)) == "Hello!"
    for path, status in (("/nothing", 404), ("/v1/completions", 405), ("/v1/models", 200)):
        response = await frontend.http.get(path, headers={"origin": ORIGIN})
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == ORIGIN


@pytest.mark.promise("S6-150")
async def test_another_origin_is_told_nothing(start: Start) -> None:
    frontend = await start(say_hello, cors_origins=(ORIGIN,))
    foreign = ("null", f"{ORIGIN}.evil", "http://app.example", "HTTPS://APP.EXAMPLE", "*")
    for origin in foreign:
        asked = {"origin": origin, "access-control-request-method": "POST"}
        for response in (
            await frontend.http.options("/v1/chat/completions", headers=asked),
            await frontend.http.get("/v1/models", headers={"origin": origin}),
        ):
            assert "access-control-allow-origin" not in response.headers
            assert response.headers["vary"] == "origin"
        assert (await frontend.http.options("/live", headers=asked)).status_code == 405


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/", "null", "file://x"])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        FrontendConfig(model_path="x", cors_origins=(origin,))
