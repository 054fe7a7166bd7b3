"""A stream that has nothing to show says what it waits for, to who asks: comments, which readers of
server-sent events pass over.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_router import Reply
from harness import CHAT, Start

from tandem.errors import NoPairError

REPORT = {"report": True}
FULL = "no slot is free on decode, which has 4; 2 more wait"


async def waits(reply: Reply) -> None:
    reply.waiting(FULL)
    await reply.flush()
    reply.waiting("prefill,\r\nbehind 1 prompt\u2028: x" + 300 * "y")
    await reply.flush()
    reply.text("Hel")
    await reply.flush()
    reply.waiting("too late")
    await reply.flush()
    reply.text("lo!")
    reply.finish(completion_tokens=2)


@pytest.mark.promise("S5-793")
async def test_a_stream_says_what_it_waits_for_until_its_first_event(start: Start) -> None:
    frontend = await start(waits, allow_reports=True)
    text = (await frontend.chat(stream=True, tandem=REPORT)).text
    first, second, event, *_ = text.split("\n\n")
    assert first == f": waiting: {FULL}"
    assert second == ": waiting: " + ("prefill, behind 1 prompt : x" + 300 * "y")[:255]
    assert event.startswith("data: ")
    assert "late" not in text
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.promise("S5-793")
@pytest.mark.parametrize(
    "fields", [{"stream": True}, {"tandem": REPORT}, {"stream": True, "tandem": REPORT, "n": 2}]
)
async def test_without_a_report_a_stream_or_for_several_outputs_nothing_is_said(
    start: Start, fields: dict[str, object]
) -> None:
    async def script(reply: Reply) -> None:
        reply.waiting(FULL)
        await reply.flush()
        for output in range(reply.submit.n):
            reply.text("Hi", output=output)
            reply.finish(output=output, completion_tokens=1)

    frontend = await start(script, allow_reports=True)
    response = await frontend.chat(**fields)
    assert response.status_code == 200
    assert "waiting" not in response.text


@pytest.mark.promise("S5-793")
async def test_clients_pass_what_is_said_over(start: Start) -> None:
    frontend = await start(waits, allow_reports=True)
    chat = await frontend.openai.chat.completions.create(
        **CHAT, stream=True, extra_body={"tandem": REPORT}
    )
    said = [chunk.choices[0].delta.content or "" async for chunk in chat if chunk.choices]
    assert "".join(said) == "Hello!"


@pytest.mark.promise("S5-793")
async def test_a_request_that_waited_and_fails_ends_with_an_event(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.waiting(FULL)
        await reply.flush()
        await asyncio.sleep(0)
        reply.end(error=NoPairError("none has come").to_proto())

    frontend = await start(script, allow_reports=True)
    response = await frontend.chat(stream=True, tandem=REPORT)
    assert response.status_code == 200
    comment, *_, failure, _ = response.text.split("\n\n")
    assert comment == f": waiting: {FULL}"
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "no_pair"
