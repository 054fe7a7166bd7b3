"""What the frontend makes of a prompt's log-probabilities: each once, all of them, or an error."""

from __future__ import annotations

from typing import Any

import pytest
from fake_router import Reply, Script
from harness import Start

FIELDS = {"prompt": [4, 5, 6], "echo": True, "logprobs": 0, "max_tokens": 1}


async def _finish(reply: Reply) -> None:
    reply.text("x")
    await reply.flush()
    reply.finish(completion_tokens=1)


def _says(*parts: tuple[int, list[int]]) -> Script:
    async def script(reply: Reply) -> None:
        for place, token_ids in parts:
            reply.prompt_logprobs(place, token_ids)
            reply.text("")  # of no tokens: it shows nothing
            await reply.flush()
        await _finish(reply)

    return script


@pytest.mark.promise("S6-333")
async def test_what_a_second_prefill_says_again_is_shown_once(start: Start) -> None:
    frontend = await start(_says((0, [4]), (1, [5]), (0, [4]), (1, [5]), (2, [6]), (1, [5])))
    answer = (await frontend.complete(**FIELDS)).json()
    shown = answer["choices"][0]["logprobs"]
    assert shown["token_logprobs"] == [None, -5.0, -6.0]
    assert len(shown["tokens"]) == len(shown["top_logprobs"]) == 3
    (reply,) = frontend.router.replies.values()
    assert reply.submit.prompt_logprobs
    assert reply.task.sampling.prompt_logprobs == 0
    assert reply.task.sampling.HasField("prompt_logprobs")


@pytest.mark.promise("S6-333")
@pytest.mark.parametrize(
    "parts",
    [
        (),
        ((0, [4]), (1, [5])),
        ((0, [4]), (2, [6])),
        ((0, [4]), (1, [5, 6, 7])),
        ((0, [4]), (0, [4, 5, 6])),
    ],
    ids=["nothing", "too-little", "a-gap", "too-much", "cut-otherwise"],
)
async def test_what_cannot_be_all_of_a_prompt_is_an_error(
    start: Start, parts: tuple[tuple[int, list[int]], ...]
) -> None:
    frontend = await start(_says(*parts))
    answer = await frontend.complete(**FIELDS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_error")


@pytest.mark.promise("S6-333")
async def test_what_nobody_asked_for_is_left_out(start: Start) -> None:
    frontend = await start(_says((0, [4]), (1, [5]), (2, [6])))
    answer = await frontend.complete(**FIELDS | {"logprobs": None})
    (choice,) = answer.json()["choices"]
    assert choice["logprobs"] is None
    assert choice["text"].endswith("x")


@pytest.mark.promise("S6-332")
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_the_setting_bounds_them_for_all_prompts_and_choices(
    start: Start, endpoint: str
) -> None:
    frontend = await start(_says(), max_prompt_logprobs=23)
    ask: Any = getattr(frontend, endpoint)
    fields = {} if endpoint == "chat" else {"prompt": [[4, 5], [6, 7]]}
    answer = await ask(**fields, prompt_logprobs=2, n=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"
    assert "at most 23" in answer.json()["error"]["message"]
    assert not frontend.router.replies
