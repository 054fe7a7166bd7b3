"""What a frontend tells at its admin port of requests that have ended."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_router import Reply
from harness import BOTH_WAYS, CHAT, Harness, Start, say_hello

PROMPT = "what nobody else may read"


async def debug(frontend: Harness, path: str = "") -> httpx.Response:
    url = f"http://127.0.0.1:{frontend.metrics_port}/debug/requests{path}"
    return await frontend.http.get(url)


async def story(frontend: Harness, trace_id: str) -> dict[str, Any]:
    """The one story of a trace id."""
    (only,) = (await debug(frontend, f"/{trace_id}")).json()["requests"]
    told: dict[str, Any] = only["story"]
    return told


@pytest.mark.promise("S5-716")
@BOTH_WAYS
async def test_a_frontend_lists_and_tells_what_has_ended_and_nothing_of_what_it_said(
    start: Start, stream: bool
) -> None:
    frontend = await start(say_hello)
    assert (await debug(frontend)).json() == {"kept": 0, "recent": [], "slowest": []}
    messages = [{"role": "user", "content": PROMPT}]
    answer = await frontend.chat(messages=messages, stream=stream)
    refused = await frontend.chat(messages=messages, max_tokens=-1)
    ids = [each.headers["x-tandem-trace-id"] for each in (refused, answer)]
    await frontend.until_metric("tandem_frontend_open_requests", 0)
    listed = await debug(frontend)
    assert [each["trace_id"] for each in listed.json()["recent"]] == ids
    assert {each["trace_id"] for each in listed.json()["slowest"]} == {*ids}
    bad, good = [await story(frontend, each) for each in ids]
    what = good["outcome"], good["endpoint"], good["tokens"]
    assert what == ("finished", "chat_completions", 3)
    assert good["body_bytes"] == len(answer.request.content)
    moments = [good[name] for name in ("came", "read", "submitted", "first", "over", "seconds")]
    assert moments == sorted(moments)
    assert bad["outcome"] == "invalid_request"
    assert not bad.keys() & {"submitted", "queue", "first", "over"}, "no router was asked"
    for each in ("", *(f"/{trace_id}" for trace_id in ids)):
        text = (await debug(frontend, each)).text
        assert PROMPT not in text
        assert "Hel" not in text
    assert (await debug(frontend, "/none")).status_code == 400
    assert (await debug(frontend, f"/{'0' * 32}")).status_code == 404


async def test_a_request_whose_client_left_it_has_had_a_router(start: Start) -> None:
    async def say_a_word(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await reply.cancelled.wait()

    frontend = await start(say_a_word)
    ask = frontend.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True})
    async with ask as answer:
        assert await anext(answer.aiter_bytes())
    await frontend.until_metric("tandem_frontend_open_requests", 0)
    told = await story(frontend, answer.headers["x-tandem-trace-id"])
    assert told["outcome"] == "cancelled"
    assert 0 < told["submitted"] <= told["first"] <= told["over"]
