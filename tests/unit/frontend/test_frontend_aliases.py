"""A served model with several names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness import BODIES, CHAT, MODEL, Harness, error_of, events, say_hello, serving
from one_case import one_case

from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = (MODEL, "gpt-4o", "org/model")
ANSWERED: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1]},
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model_path: Path) -> AsyncIterator[Harness]:
    # A name given twice is one.
    async with serving(model_path, say_hello, {"model_aliases": (*NAMES[1:], MODEL)}) as harness:
        yield harness


@pytest.mark.promise("S6-316")
@one_case("path", BODIES)
@one_case("name", NAMES)
async def test_answers_and_streams_repeat_the_name_that_was_asked_for(
    frontend: Harness, name: str, path: str
) -> None:
    for size in (0, SMALL_BYTES):  # the larger is read in a process
        fields = BODIES[path] | {"model": name, "invented": "x" * size}
        answer = await frontend.http.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        assert frontend.router.last.task.model == MODEL
    streamed = await frontend.http.post(path, json=fields | {"stream": True})
    if path in ("/v1/responses", "/v1/messages"):
        assert f'"model":"{name}"' in streamed.text
    else:
        assert {chunk["model"] for chunk in events(streamed.text)} == {name}


@pytest.mark.promise("S6-316")
@one_case("path", BODIES | ANSWERED)
async def test_every_path_knows_all_names_and_no_other(frontend: Harness, path: str) -> None:
    fields = (BODIES | ANSWERED)[path]
    for name in NAMES:
        answer = await frontend.http.post(path, json=fields | {"model": name})
        assert answer.status_code == 200, answer.text
    other = await frontend.http.post(path, json=fields | {"model": "other"})
    assert other.status_code == 404, other.text


@pytest.mark.promise("S6-316")
async def test_every_name_has_a_card(frontend: Harness) -> None:
    cards = (await frontend.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == list(NAMES)
    for card in cards:
        assert (await frontend.http.get(f"/v1/models/{card['id']}")).json() == card
    missing = await frontend.http.get("/v1/models/gpt-4")
    assert error_of(missing) == (404, "model_not_found", "model")


async def test_a_name_is_not_empty() -> None:
    with pytest.raises(ConfigError, match="model_aliases holds an empty name"):
        FrontendConfig(model_path="m", model_aliases=("a", ""))
