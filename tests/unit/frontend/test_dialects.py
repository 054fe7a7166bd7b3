"""The dialects that packages offer are found by their entry points, and served as chats are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

import msgspec
import pytest
from harness import MODEL, Start, error_of, say_hello

from tandem_frontend.openai import answers, dialects, docs_page, openapi
from tandem_frontend.openai.dialects import CHAT, GROUP, Counting, ErrorShape
from tandem_frontend.openai.reading import bodies

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


class Counted(msgspec.Struct):
    tokens: int


OFFERED = (
    replace(
        CHAT,
        endpoint="own",
        path="/v1/own",
        summary="Answer in a way of one's own",
        names={"n": "answers"},
        errors=ErrorShape(
            schema=answers.ErrorBody,
            status=lambda error: error.http_status + 1,
            body=lambda *told: repr(
                (told[0].code, told[0].param, told[0].message, told[1])
            ).encode(),
            request_id_header=b"x-own-id",
        ),
        counting=Counting(
            endpoint="own_count",
            path="/v1/own/count",
            summary="Count in a way of one's own",
            requests=CHAT.requests,
            prompt=CHAT.generating,
            answer=Counted,
        ),
        below="Nothing of it is kept",
    ),
)


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one dialect above is all that installed packages offer."""
    cached = (dialects.spoken, dialects.by_endpoint, bodies._dropped)
    pages = (openapi.describe, openapi.document, docs_page.page)
    points = metadata.EntryPoints([metadata.EntryPoint("own", f"{__name__}:OFFERED", GROUP)])
    found = metadata.entry_points
    for each in (*cached, *pages):
        each.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(
            metadata,
            "entry_points",
            lambda **asked: points.select(**asked) if asked["group"] == GROUP else found(**asked),
        )
        yield
    for each in (*cached, *pages):
        each.cache_clear()


async def test_a_dialect_of_a_package_is_served_counted_and_described(start: Start) -> None:
    frontend = await start(say_hello)
    answer = await frontend.http.post("/v1/own", json=BODY)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
    assert "x-own-id" in answer.headers
    counted = await frontend.http.post("/v1/own/count", json=BODY)
    assert counted.json() == {"tokens": answer.json()["usage"]["prompt_tokens"]}
    for endpoint in ("own", "own_count"):
        labels = {"endpoint": endpoint, "outcome": "success"}
        assert await frontend.metric("tandem_frontend_requests_total", **labels) == 1
    listed = (await frontend.http.get("/")).json()["paths"]
    described = (await frontend.http.get("/openapi.json")).json()["paths"]
    for path in ("/v1/own", "/v1/own/count"):
        assert listed[path] == described[path]["post"]["summary"]


async def test_clients_of_a_dialect_are_told_of_errors_in_its_own_words(start: Start) -> None:
    frontend = await start(say_hello)
    refused = await frontend.http.post("/v1/own", json=BODY | {"n": 1000})
    assert refused.status_code == 401
    said = ("invalid_request", "answers", "`answers` must not exceed 128")
    assert refused.text == repr((*said, refused.headers["x-own-id"]))
    missed = await frontend.http.post("/v1/own/elsewhere", json={})
    assert missed.status_code == 405
    said = ("not_found", "", "Nothing of it is kept")
    assert missed.text == repr((*said, missed.headers["x-own-id"]))


async def test_what_no_package_offers_is_not_there(start: Start) -> None:
    frontend = await start(say_hello)
    refused = await frontend.http.post("/v1/messages", json={})
    assert error_of(refused) == (404, "not_found", None)
    at = "what generates is at /v1/chat/completions, /v1/own and /v1/completions, and / lists all"
    assert at in refused.text
