"""Token ids beside the text (`return_token_ids`), in vLLM's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_router import Reply
from harness import BOTH_WAYS, MODEL, Harness, error_of, events, serving
from upstream_parts import submission

from tandem.errors import TooLargeError
from tandem.upstream.submission import SubmittedPrompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS = (("<think>a", [5, 6]), ("</think>", [7]), ("", [8]), ("Well.", [9, 10]), ("REDACTED", []))
IDS = [5, 6, 7, 8, 9, 10]
MESSAGES = [{"role": "user", "content": "Hello"}]


async def script(reply: Reply) -> None:
    """Rows of text and ids. Of the last one a hook let the text go alone."""
    for output in range(reply.submit.n):
        for text, ids in ROWS:
            if reply.task.want_token_ids:
                reply.token_ids(ids, output=output, text=text if reply.task.want_text else "")
            else:
                reply.text(text, output=output, tokens=len(ids))
            await reply.flush()
        reply.finish(output=output, completion_tokens=len(IDS))
    await reply.flush()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, script, {"model_family": "qwen3"}) as harness:
        yield harness


def ids_of(choices: list[dict[str, Any]]) -> list[int]:
    """Those of all, joined."""
    return [token for choice in choices for token in choice.get("token_ids") or ()]


async def prompt_of(frontend: Harness, **asked: Any) -> list[int]:
    tokens: list[int] = (await frontend.http.post("/tokenize", json=asked)).json()["tokens"]
    return tokens


@pytest.mark.promise("S5-632")
async def test_a_chat_has_the_ids_of_its_prompt_and_of_each_choice(thinker: Harness) -> None:
    answer = (await thinker.chat(return_token_ids=True, n=2)).json()
    assert answer["prompt_token_ids"] == await prompt_of(thinker, messages=MESSAGES)
    for choice in answer["choices"]:
        assert choice["token_ids"] == IDS
        assert choice["message"]["reasoning"] == "a"
        assert choice["message"]["content"] == "Well.REDACTED"
        assert "prompt_token_ids" not in choice


@pytest.mark.promise("S5-646")
async def test_a_prompt_that_is_known_shows_all_its_ids(thinker: Harness) -> None:
    messages = [{"role": role, "content": "Hello " * 400} for role in ("system", "user")]
    for ids in (False, False, True):
        answer = (await thinker.chat(messages=messages, return_token_ids=ids)).json()
    assert answer["prompt_token_ids"] == await prompt_of(thinker, messages=messages)


@pytest.mark.promise("S5-632")
async def test_a_streamed_chat_has_them_in_its_chunks(thinker: Harness) -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(
        (await thinker.chat(return_token_ids=True, n=2, stream=True, stream_options=usage)).text
    )
    prompt = await prompt_of(thinker, messages=MESSAGES)
    assert [chunk.get("prompt_token_ids") for chunk in chunks[:3]] == [prompt, prompt, None]
    for index in range(2):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert ids_of(parts) == IDS
        assert "".join(part["delta"].get("content") or "" for part in parts) == "Well.REDACTED"
        assert parts[-1]["token_ids"] == [], "the last chunk has none of its own"


@pytest.mark.promise("S5-632")
async def test_each_choice_of_a_completion_has_those_of_its_prompt(thinker: Harness) -> None:
    fields = {"prompt": [[3, 4], [11]], "n": 2, "return_token_ids": True, "echo": True}
    whole = (await thinker.complete(**fields)).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in whole] == [[3, 4], [3, 4], [11], [11]]
    assert [choice["token_ids"] for choice in whole] == [IDS] * 4, "echo changes no ids"
    chunks = events((await thinker.complete(**fields, stream=True)).text)
    parts = [part for chunk in chunks for part in chunk["choices"]]
    for choice in whole:
        mine = [part for part in parts if part["index"] == choice["index"]]
        assert [part.get("prompt_token_ids") for part in mine[:2]] == [
            choice["prompt_token_ids"],
            None,
        ]
        assert ids_of(mine) == IDS
        assert "".join(part["text"] for part in mine) == choice["text"]


@pytest.mark.promise("S5-632")
@BOTH_WAYS
async def test_without_text_the_ids_of_the_prompt_come_too(thinker: Harness, stream: bool) -> None:
    fields = {"return_token_ids": True, "detokenize": False, "prompt": [3, 4], "stream": stream}
    response = await thinker.complete(**fields)
    bodies = events(response.text) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert choices[0]["prompt_token_ids"] == [3, 4]
    assert ids_of(choices) == IDS
    assert "".join(choice["text"] for choice in choices) == ""


@BOTH_WAYS
async def test_nobody_has_ids_who_did_not_ask_for_them(thinker: Harness, stream: bool) -> None:
    for asked in ({}, {"return_token_ids": False}, {"return_token_ids": None}):
        for ask in (thinker.chat, thinker.complete):
            assert "token_ids" not in (await ask(**asked, stream=stream)).text


@pytest.mark.promise("S5-632")
@BOTH_WAYS
@pytest.mark.parametrize(
    "asked", [{"return_token_ids": True}, {"detokenize": False}, {"logprobs": True}]
)
async def test_no_token_shows_reasoning_that_a_client_left_out(
    thinker: Harness, asked: dict[str, bool], stream: bool
) -> None:
    left_out = {"include_reasoning": False, "stream": stream}
    refused = await thinker.chat(**asked, **left_out)
    assert error_of(refused) == (400, "unsupported_parameter", *asked)
    assert (await thinker.chat(**asked, separate_reasoning=False, **left_out)).status_code == 200


@pytest.mark.promise("S5-632")
async def test_other_dialects_have_no_such_field(thinker: Harness) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": MESSAGES}
    for path, request in (
        ("/v1/responses", {"model": MODEL, "input": "Hello"}),
        ("/v1/messages", body),
    ):
        refused = await thinker.http.post(path, json=request | {"return_token_ids": True})
        assert refused.status_code == 400
        assert "return_token_ids" in refused.json()["error"]["message"]
        taken = await thinker.http.post(path, json=request | {"return_token_ids": False})
        assert taken.status_code == 200


@pytest.mark.promise("S5-632")
async def test_ids_of_prompts_count_once_for_each_choice() -> None:
    """As a text does that is shown again."""
    plain = submission(prompts=[SubmittedPrompt.of([1000] * 99, max_tokens=5)], n=100)
    shows = submission(
        prompts=[SubmittedPrompt.of([1000] * 99, max_tokens=5, shows_ids=True)], n=100
    )
    assert shows.held_bytes - plain.held_bytes == 100 * len("1000,") * 99 + 100
    plain.check_size(b"", most=10_000)
    with pytest.raises(TooLargeError):
        shows.check_size(b"", most=10_000)
