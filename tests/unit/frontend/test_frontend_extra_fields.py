"""Fields of a body that no API has and the deployment names, on their way to classifiers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness import BODIES, CHAT, MODEL, Harness, error_of, say_hello, serving

from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.bodies import SMALL_BYTES
from tandem_frontend.openai.reading.reader import field_rules

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEADER = "x-tandem-ignored-fields"
MAX_BYTES = 8192
ENDPOINTS = pytest.mark.parametrize("path", list(BODIES))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["warn", "refuse"])
async def naming(model_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    settings = {
        "extra_fields": ("my_policy", "documents_read"),
        "max_extra_fields_bytes": MAX_BYTES,
        "unknown_fields": request.param,
    }
    async with serving(model_path, say_hello, settings) as harness:
        yield harness


@pytest.mark.promise("S5-583")
async def test_the_description_has_the_named_fields_of_each_body_that_takes_them(
    naming: Harness,
) -> None:
    description = (await naming.http.get("/openapi.json")).json()
    schemas = description["components"]["schemas"]
    others = {
        "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
        "/tokenize": {"prompt": "Hello"},
    }
    others |= {"/detokenize": {"tokens": [1]}}
    for path, fields in (BODIES | others).items():
        (body,) = description["paths"][path]["post"]["requestBody"]["content"].values()
        described = schemas[body["schema"]["$ref"].rpartition("/")[2]]
        assert {"my_policy", "documents_read"} <= described["properties"].keys()
        assert "type" not in described["properties"]["my_policy"], "it is whatever JSON it is"
        given = {"model": MODEL, **fields, "my_policy": [1]}
        response = await naming.http.post(path, json=given)
        assert (response.status_code, HEADER in response.headers) == (200, False), response.text
    assert "my_policy" not in schemas["ChatMessage"]["properties"]
    assert "<code>my_policy</code>" in (await naming.http.get("/docs")).text


@pytest.mark.promise("S4-125")
@ENDPOINTS
@pytest.mark.parametrize("padding", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_named_fields_reach_the_workers_as_they_are(
    naming: Harness, path: str, padding: int
) -> None:
    given = {"my_policy": {"strict": [True, None, 0.5, "é"]}, "documents_read": "one"}
    body = {"model": MODEL, **BODIES[path], **given}
    response = await naming.http.post(path, content=json.dumps(body) + " " * padding)
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers
    assert json.loads(naming.router.last.task.extra_fields) == given
    assert dict(naming.router.last.task.metadata) == {}


@pytest.mark.promise("S4-125")
@ENDPOINTS
async def test_fields_inside_of_others_and_fields_that_are_not_named_are_none_of_them(
    naming: Harness, path: str
) -> None:
    plain = await naming.http.post(path, json={"model": MODEL, **BODIES[path]})
    assert plain.status_code == 200
    assert naming.router.last.task.extra_fields == ""
    other = {"model": MODEL, **BODIES[path], "my_policy": 1, "their_policy": 2}
    response = await naming.http.post(path, json=other)
    if response.status_code == 200:
        assert response.headers[HEADER] == "their_policy"
        assert json.loads(naming.router.last.task.extra_fields) == {"my_policy": 1}
    else:
        assert "their_policy" in response.text
    if "messages" in BODIES[path]:
        inner = {
            "model": MODEL,
            **BODIES[path],
            "messages": [{**CHAT["messages"][0], "my_policy": 1}],
        }
        inside = await naming.http.post(path, json=inner)
        assert inside.headers.get(HEADER, "messages[].my_policy") == "messages[].my_policy"
        assert inside.status_code == 400 or naming.router.last.task.extra_fields == ""


@pytest.mark.promise("S6-460")
@ENDPOINTS
@pytest.mark.parametrize(
    "value", ["x" * MAX_BYTES, json.loads("[" * 40 + "]" * 40)], ids=["large", "deep"]
)
async def test_too_much_of_them_is_refused_and_the_field_named(
    naming: Harness, path: str, value: Any
) -> None:
    body = {"model": MODEL, **BODIES[path], "documents_read": 1, "my_policy": value}
    response = await naming.http.post(path, json=body)
    assert response.status_code == 400
    assert "my_policy" in response.text
    if "messages" not in path:
        assert error_of(response)[2] == "my_policy"


@pytest.mark.promise("S4-125")
async def test_those_who_only_count_take_them_too(naming: Harness) -> None:
    body = {"model": MODEL, "messages": CHAT["messages"], "my_policy": 1}
    for path in ("/tokenize", "/v1/messages/count_tokens"):
        response = await naming.http.post(path, json=body)
        assert response.status_code == 200, response.text
        assert HEADER not in response.headers


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"extra_fields": ("temperature",)}, "`temperature` for something else"),
        ({"extra_fields": ("cache_salt",)}, "`cache_salt` for something else"),
        ({"extra_fields": ("max_output_tokens",)}, "`max_output_tokens` for something else"),
        ({"extra_fields": ("",)}, "none of them empty"),
        ({"extra_fields": ("n" * 65,)}, "at most 64 characters"),
        ({"extra_fields": tuple(f"f{n}" for n in range(65))}, "takes 64 names"),
    ],
    ids=str,
)
async def test_names_that_cannot_be_theirs_are_refused_at_the_start(
    model_path: Path, settings: dict[str, Any], says: str
) -> None:
    config = FrontendConfig(router=("r:1",), model_path=str(model_path), **settings)
    with pytest.raises(ConfigError, match=says):
        field_rules(config)


@pytest.mark.parametrize("size", [0, 128 * 1024 + 1])
async def test_a_size_that_cannot_be_is_refused_at_the_start(model_path: Path, size: int) -> None:
    with pytest.raises(ConfigError, match="max_extra_fields_bytes"):
        FrontendConfig(router=("r:1",), model_path=str(model_path), max_extra_fields_bytes=size)
