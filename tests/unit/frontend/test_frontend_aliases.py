"""A served model with several names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_router import Reply
from harness import MODEL, Harness, error_of, events, say_hello, serving

from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = (MODEL, "gpt-4o", "org/model")
USER = {"role": "user", "content": "Hello"}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": [USER], "max_tokens": 9},
}
ANSWERED: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1]},
    "/v1/messages/count_tokens": {"messages": [USER]},
}
TASKED: list[str] = []
"""What the router was told of the model."""


async def note(reply: Reply) -> None:
    TASKED.append(reply.task.model)
    await say_hello(reply)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model_path: Path) -> AsyncIterator[Harness]:
    # A name given twice is one.
    async with serving(model_path, note, {"model_aliases": (*NAMES[1:], MODEL)}) as harness:
        yield harness


@pytest.mark.promise("S6-316")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_repeats_the_name_that_was_asked_for(
    frontend: Harness, name: str, path: str, size: int
) -> None:
    fields = PATHS[path] | {"model": name, "invented": "x" * size}
    answer = await frontend.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    assert TASKED[-1] == MODEL


@pytest.mark.promise("S6-316")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_stream_repeats_the_name_that_was_asked_for(
    frontend: Harness, name: str, path: str
) -> None:
    answer = await frontend.http.post(path, json=PATHS[path] | {"model": name, "stream": True})
    assert answer.status_code == 200, answer.text
    if path in ("/v1/responses", "/v1/messages"):
        assert f'"model":"{name}"' in answer.text
    else:
        assert {chunk["model"] for chunk in events(answer.text)} == {name}


@pytest.mark.promise("S6-316")
@pytest.mark.parametrize("path", ANSWERED)
async def test_every_path_knows_all_names(frontend: Harness, path: str) -> None:
    for name in NAMES:
        answer = await frontend.http.post(path, json=ANSWERED[path] | {"model": name})
        assert answer.status_code == 200, answer.text
    other = await frontend.http.post(path, json=ANSWERED[path] | {"model": "other"})
    assert other.status_code == 404, other.text


@pytest.mark.promise("S6-316")
async def test_every_name_has_a_card(frontend: Harness) -> None:
    cards = (await frontend.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == list(NAMES)
    for card in cards:
        assert (await frontend.http.get(f"/v1/models/{card['id']}")).json() == card
    missing = await frontend.http.get("/v1/models/gpt-4")
    assert error_of(missing) == (404, "model_not_found", "model")


@pytest.mark.promise("S6-316")
async def test_names_of_others_are_not_found(frontend: Harness) -> None:
    for path, fields in PATHS.items():
        answer = await frontend.http.post(path, json=fields | {"model": "gpt-4"})
        assert answer.status_code == 404, answer.text


async def test_a_name_is_not_empty() -> None:
    with pytest.raises(ConfigError, match="model_aliases holds an empty name"):
        FrontendConfig(model_path="m", model_aliases=("a", ""))
