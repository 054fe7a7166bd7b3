"""What a frontend tells routers of a prompt beside its bytes: its blocks, and its session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_router import Reply
from harness import CHAT, Start

from frontend.openai.reading.bodies import SMALL_BYTES
from tandem.prefix_blocks import BLOCK_TOKENS, packed, session_number

AGENTS = (
    "X-Claude-Code-Session-Id",
    "session-id",
    "session_id",
    "thread-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-session-token",
    "x-smg-routing-key",
)
"""Headers by which agents, and what stands before them, name a session."""


class Submits:
    """What reaches the router."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    async def __call__(self, reply: Reply) -> None:
        self.replies.append(reply)
        reply.text("Hi")
        reply.finish(completion_tokens=1)
        await reply.flush()


@pytest.mark.promise("S5-254")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_a_router_is_told_the_blocks_of_each_prompt(start: Start, size: int) -> None:
    submits = Submits()
    frontend = await start(submits)
    prompts = [[7] * 200, [7] * 100, [7] * (BLOCK_TOKENS - 1)]
    await frontend.complete(prompt=prompts, max_tokens=1, stop=["x" * 100] * 3, user="u" * size)
    told = {len(each.task.prompt_token_ids): each.submit for each in submits.replies}
    for prompt in prompts:
        assert told[len(prompt)].prompt_blocks == packed(prompt)
    assert [len(told[n].prompt_blocks) for n in (200, 100, 63)] == [24, 8, 0]


@pytest.mark.promise("S5-258")
@pytest.mark.parametrize(
    ("fields", "headers", "session"),
    [
        ({}, {}, ""),
        ({"user": "a"}, {}, "a"),
        ({"user": "a", "prompt_cache_key": "b"}, {}, "b"),
        ({"user": "a", "prompt_cache_key": "b"}, {"x-session-id": "c"}, "c"),
        *(({"user": "a"}, {name: "c"}, "c") for name in AGENTS),
        ({}, {"x-session-id": "child", "x-parent-session-id": "parent"}, "parent"),
        ({}, {"x-dynamo-session-id": "child", "x-dynamo-parent-session-id": "parent"}, "parent"),
    ],
)
async def test_a_router_is_told_a_number_for_the_session_that_a_client_names(
    start: Start, fields: dict[str, Any], headers: dict[str, str], session: str
) -> None:
    submits = Submits()
    frontend = await start(submits)
    await frontend.http.post("/v1/chat/completions", json=CHAT | fields, headers=headers)
    (reply,) = submits.replies
    assert reply.submit.session == (session_number(session) if session else 0)


@pytest.mark.promise("S5-258")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "Hi", "prompt_cache_key": "s"}),
        ("/v1/messages", {"messages": CHAT["messages"], "metadata": {"user_id": "s"}}),
    ],
)
async def test_other_dialects_name_sessions_too(
    start: Start, path: str, body: dict[str, Any]
) -> None:
    submits = Submits()
    frontend = await start(submits)
    common = {"model": CHAT["model"], "max_tokens" if "messages" in body else "top_p": 1}
    answer = await asyncio.wait_for(frontend.http.post(path, json=common | body), 20)
    assert answer.status_code == 200, answer.text
    assert submits.replies[0].submit.session == session_number("s")
