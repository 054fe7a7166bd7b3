"""The dialects that packages offer are found by their entry points, and served as chats are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

import msgspec
import pytest
from harness import MODEL, Start, error_of, say_hello

from tandem.errors import LoadError
from tandem.usercode import loader
from tandem_frontend.openai import answers, dialects, docs_page, openapi
from tandem_frontend.openai.dialects import CHAT, COMPLETION, GROUP, Counting, Dialect, ErrorShape
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
    cached = (loader.found_on, dialects.spoken, dialects.by_endpoint, bodies._dropped)
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
    paths = "/v1/chat/completions, /v1/own and /v1/completions"
    assert f"answers are generated at {paths}, and / lists all paths" in refused.text


OWN = OFFERED[0]
COUNTING = OWN.counting
assert COUNTING is not None
ALONE = replace(OWN, counting=None)


@pytest.mark.parametrize(
    ("offered", "name", "path"),
    [
        (replace(ALONE, path=CHAT.path), CHAT.path, CHAT.path),
        (replace(ALONE, endpoint=COMPLETION.endpoint), COMPLETION.endpoint, COMPLETION.path),
        (replace(OWN, counting=replace(COUNTING, path=CHAT.path)), CHAT.path, CHAT.path),
        (replace(OWN, counting=replace(COUNTING, endpoint="own")), "own", OWN.path),
    ],
    ids=("a path", "an endpoint", "a path of counting", "an endpoint of counting"),
)
def test_two_dialects_that_offer_the_same_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, offered: Dialect, name: str, path: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OFFERED", (offered,))
    with pytest.raises(LoadError) as refused:
        dialects.spoken()
    said = str(refused.value)
    assert GROUP in said
    assert f"two dialects offer {name}, at the paths {path} and " in said
