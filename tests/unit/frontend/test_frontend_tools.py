"""Chats with tools and reasoning: what the model is shown, and what its answer is taken apart
to.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_router import Reply
from harness import BOTH_WAYS, CHAT, Harness, error_of, events, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case
from spoken import BERN, CALL, THOUGHT, Script, rows_of

from tandem.v1 import common_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "How warm is it in Bern?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TWO = CALL + '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


SCRIPT = Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(model_path: Path) -> AsyncIterator[Harness]:
    """Its model's family shows in its chat template."""
    async with serving(model_path, SCRIPT, {}) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, SCRIPT, {"model_family": "qwen3"}) as harness:
        yield harness


async def ask(frontend: Harness, *, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """The choices' messages, each with its finish_reason: of a body, or joined of a stream."""
    response = await frontend.chat(stream=stream, **fields)
    assert response.status_code == 200, response.text
    if not stream:
        return [
            choice["message"] | {"finish_reason": choice["finish_reason"]}
            for choice in response.json()["choices"]
        ]
    return joined(events(response.text))


def joined(chunks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As clients join the deltas of a stream."""
    messages: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        message = messages.setdefault(choice["index"], {"content": None})
        if choice["finish_reason"]:
            message["finish_reason"] = choice["finish_reason"]
        for name, value in choice["delta"].items():
            if name == "tool_calls":
                for call in value:
                    _add_call(message.setdefault("tool_calls", []), call)
            elif name == "function_call":
                called = message.setdefault("function_call", {"arguments": ""})
                called["arguments"] += value.get("arguments", "")
                called |= {"name": value["name"]} if "name" in value else {}
            elif name == "role" or value == "":
                message["role"] = "assistant"
            else:
                message[name] = (message.get(name) or "") + value
    return [messages[index] for index in sorted(messages)]


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    index = delta["index"]
    assert index <= len(calls)
    if index == len(calls):
        assert delta["id"]
        assert delta["type"] == "function"
        calls.append({"id": delta["id"], "type": "function", "function": {"arguments": ""}})
        calls[index]["function"]["name"] = delta["function"]["name"]
    calls[index]["function"]["arguments"] += delta["function"].get("arguments", "")


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


# --- what the model is shown ---


@pytest.mark.promise("S6-310")
async def test_the_model_is_shown_the_tools_their_calls_and_their_results(
    hermes: Harness, model_path: Path
) -> None:
    SCRIPT.says("It is warm.")
    call = {"name": "weather", "arguments": BERN}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees"}
    await ask(hermes, stream=False, tools=[WEATHER], messages=[USER, said, result])
    shown = SCRIPT.prompt(model_path)
    assert json.dumps(WEATHER["function"]) in shown
    assert CALL in shown
    assert "<tool_response>\n20 degrees\n</tool_response>" in shown
    await ask(hermes, stream=False, messages=[USER])
    assert "weather" not in SCRIPT.prompt(model_path)


@pytest.mark.promise("S6-310")
async def test_the_older_form_of_tools_says_the_same(hermes: Harness, model_path: Path) -> None:
    SCRIPT.says("It is warm.")
    call = {"name": "weather", "arguments": BERN}
    older = [
        USER,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "20 degrees"},
    ]
    await ask(hermes, stream=False, functions=[WEATHER["function"]], messages=older)
    shown = SCRIPT.prompt(model_path)
    assert json.dumps(WEATHER["function"]) in shown
    assert CALL in shown
    assert "<tool_response>\n20 degrees\n</tool_response>" in shown


async def test_arguments_that_are_no_object_are_shown_as_they_are(
    hermes: Harness, model_path: Path
) -> None:
    SCRIPT.says("Well.")
    for arguments in ('{"place": "Be', "[1]", "[" * 100_000):
        function = {"name": "weather", "arguments": arguments}
        said = {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}
        response = await hermes.chat(messages=[USER, said])
        if len(arguments) < 100:
            assert response.status_code == 200
            assert json.dumps(arguments) in SCRIPT.prompt(model_path)
        else:
            assert error_of(response)[1] == "context_length_exceeded"


async def test_tokenize_counts_tools_as_a_chat_does(hermes: Harness) -> None:
    SCRIPT.says("Well.")
    body = {"messages": [USER], "tools": [WEATHER]}
    counted = (await hermes.http.post("/tokenize", json=body)).json()["count"]
    answer = (await hermes.chat(**body)).json()
    assert answer["usage"]["prompt_tokens"] == counted


async def test_a_final_message_is_continued(hermes: Harness, model_path: Path) -> None:
    SCRIPT.says(" warm.")
    said = {"role": "assistant", "content": "It is"}
    await ask(hermes, stream=False, messages=[USER, said], continue_final_message=True)
    assert SCRIPT.prompt(model_path).endswith("<|im_start|>assistant\nIt is")
    await ask(hermes, stream=False, messages=[USER, said], add_generation_prompt=False)
    assert SCRIPT.prompt(model_path).endswith("<|im_start|>assistant\nIt is<|im_end|>\n")


# --- what an answer is taken apart to ---


ALONE = {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
Says = tuple[Sequence[str], dict[str, Any]]
SAID: dict[str, tuple[Says, dict[str, Any], tuple[str | None, list[tuple[str, str]], str]]] = {
    "a text and a call": (
        (["Let me see.\n", *CALL], {}), {},
        ("Let me see.\n", [("weather", BERN)], "tool_calls"),
    ),
    "two calls where one is wanted": (
        ([TWO], {}), ALONE, (None, [("weather", BERN)], "tool_calls"),
    ),
    "it was cut off in a call": (
        (CALL[: CALL.index("Bern") + 2], {"length": True}), {},
        (None, [("weather", '{"place": "Be')], "length"),
    ),
    "what might have become a call": (
        (["It is <", "tool_c"], {}), {}, ("It is <tool_c", [], "stop"),
    ),
    "a hook ended it after a call": (
        ([CALL], {"blocked": "guard"}), {}, (None, [("weather", BERN)], "stop"),
    ),
}  # fmt: skip
"""What the model says, what else is asked, and what the answer is made of."""


@BOTH_WAYS
@pytest.mark.promise("S0-016", "S6-311")
@one_case("name", SAID)
async def test_a_call_is_told_from_text(hermes: Harness, name: str, stream: bool) -> None:
    (rows, end), fields, expected = SAID[name]
    SCRIPT.says(*rows, **end)
    (message,) = await ask(hermes, stream=stream, **{"tools": [WEATHER]} | fields)
    assert (message["content"] or None, called(message), message["finish_reason"]) == expected


@BOTH_WAYS
@pytest.mark.promise("S6-311")
async def test_several_calls_have_ids_of_their_own(hermes: Harness, stream: bool) -> None:
    SCRIPT.says(TWO)
    messages = await ask(hermes, stream=stream, tools=[WEATHER, CLOCK], n=2)
    for message in messages:
        assert called(message) == [("weather", BERN), ("clock", "{}")]
        assert message["content"] is None
    ids = [call["id"] for message in messages for call in message["tool_calls"]]
    again = await ask(hermes, stream=stream, tools=[WEATHER, CLOCK])
    ids += [call["id"] for call in again[0]["tool_calls"]]
    assert len(set(ids)) == 6


@pytest.mark.promise("S6-311")
async def test_an_id_that_a_model_gives_twice_is_used_once(model_path: Path) -> None:
    begin, end = "<|tool_call_begin|>functions.clock:0", "<|tool_call_argument_begin|>{}"
    call = f"{begin}{end}<|tool_call_end|>"
    SCRIPT.says(f"<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>")
    async with serving(model_path, SCRIPT, {"model_family": "kimi_k2"}) as frontend:
        for stream in (False, True):
            (message,) = await ask(frontend, stream=stream, tools=[CLOCK])
            first, second = [call["id"] for call in message["tool_calls"]]
            assert first == "functions.clock:0"
            assert second.startswith("call_")


@BOTH_WAYS
async def test_the_older_form_is_answered_in_it(hermes: Harness, stream: bool) -> None:
    SCRIPT.says(*CALL)
    (message,) = await ask(hermes, stream=stream, functions=[WEATHER["function"]])
    assert message["function_call"] == {"name": "weather", "arguments": BERN}
    assert "tool_calls" not in message
    assert message["finish_reason"] == "function_call"


@BOTH_WAYS
@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}], ids=str)
async def test_without_tools_a_call_is_text(
    hermes: Harness, thinker: Harness, stream: bool, fields: dict[str, Any]
) -> None:
    SCRIPT.says(CALL)
    for frontend in (hermes, thinker):
        (message,) = await ask(frontend, stream=stream, **fields)
        assert (message["content"], message["finish_reason"]) == (CALL, "stop")


@BOTH_WAYS
@pytest.mark.promise("S6-243")
async def test_what_is_no_call_is_text_and_counted(hermes: Harness, stream: bool) -> None:
    broken = '<tool_call>\n{"name": "weather", "arguments" {"place": "Bern"}}\n</tool_call>'
    before = await hermes.metric("tandem_frontend_broken_tool_calls_total")
    SCRIPT.says(*broken)
    (message,) = await ask(hermes, stream=stream, tools=[WEATHER])
    assert (message["content"], message["finish_reason"]) == (broken, "stop")
    assert await hermes.metric("tandem_frontend_broken_tool_calls_total") == before + 1
    before = await hermes.metric("tandem_frontend_tool_calls_total")
    SCRIPT.says(CALL)
    await ask(hermes, stream=stream, tools=[WEATHER])
    assert await hermes.metric("tandem_frontend_tool_calls_total") == before + 1


@BOTH_WAYS
@pytest.mark.promise("S6-313")
async def test_reasoning_is_told_from_the_answer_and_counted(
    thinker: Harness, stream: bool
) -> None:
    SCRIPT.says(*THOUGHT, *"It is warm.")
    (message,) = await ask(thinker, stream=stream)
    assert message["content"] == "It is warm."
    assert message["reasoning_content"] == message["reasoning"] == "\nBern is a city.\n"
    fields = {"stream_options": {"include_usage": True}} if stream else {}
    response = await thinker.chat(stream=stream, **fields)
    usage = (events(response.text)[-1] if stream else response.json())["usage"]
    tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert abs(tokens - len(THOUGHT)) <= len("<think></think>")
    assert tokens > 0
    assert usage["completion_tokens"] == len(THOUGHT) + len("It is warm.")


@pytest.mark.promise("S6-313")
async def test_reasoning_that_comes_at_once_is_counted_by_its_characters(thinker: Harness) -> None:
    SCRIPT.says("<think>aaaaaaaaaa</think>aaa", completion_tokens=28)

    async def script(reply: Reply) -> None:
        reply.text("<think>aaaaaaaaaa</think>aaa", tokens=28)
        reply.finish(completion_tokens=28)
        await reply.flush()

    thinker.router.script = script
    try:
        usage = (await thinker.chat()).json()["usage"]
    finally:
        thinker.router.script = SCRIPT
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 10


@BOTH_WAYS
async def test_reasoning_may_stay_where_it_is_or_be_left_out(
    thinker: Harness, stream: bool
) -> None:
    SCRIPT.says(THOUGHT, "It is warm.")
    (message,) = await ask(thinker, stream=stream, separate_reasoning=False)
    assert message["content"] == THOUGHT + "It is warm."
    (message,) = await ask(thinker, stream=stream, include_reasoning=False)
    assert message["content"] == "It is warm."
    assert "reasoning" not in message


@BOTH_WAYS
async def test_a_call_after_reasoning_is_both(thinker: Harness, stream: bool) -> None:
    SCRIPT.says(*THOUGHT, *CALL)
    (message,) = await ask(thinker, stream=stream, tools=[WEATHER])
    assert message["reasoning"] == "\nBern is a city.\n"
    assert called(message) == [("weather", BERN)]
    assert not message["content"]


async def test_a_bad_escape_in_arguments_is_what_the_model_meant(hermes: Harness) -> None:
    SCRIPT.says(
        '<tool_call>\n{"name": "weather", "arguments": {"place": "/a/\\$USER/b"}}\n</tool_call>'
    )
    (choice,) = (await hermes.chat(tools=[WEATHER])).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"place": "/a/\\$USER/b"}


@BOTH_WAYS
async def test_a_call_that_breaks_in_its_arguments_is_not_called_done(
    hermes: Harness, stream: bool
) -> None:
    SCRIPT.says('<tool_call>\n{"name": "weather", "arguments": {"place": nonsense}}\n</tool_call>')
    answer = await hermes.chat(tools=[WEATHER], stream=stream)
    assert '"finish_reason":"stop"' in answer.text
    assert '"finish_reason":"tool_calls"' not in answer.text


async def test_a_model_that_does_not_reason_says_what_it_cannot_follow(
    hermes: Harness, thinker: Harness
) -> None:
    SCRIPT.says("Well.")
    header = "x-tandem-ignored-fields"
    for effort in ("none", "minimal"):
        assert header not in (await hermes.chat(reasoning_effort=effort)).headers
    hints: dict[str, Any] = {"reasoning_effort": "high", "thinking_token_budget": 5}
    for field, value in hints.items():
        answer = await hermes.chat(**{field: value})
        assert (answer.status_code, answer.headers[header]) == (200, field)
    assert header not in (await thinker.chat(reasoning_effort="high")).headers


async def test_log_probabilities_come_with_every_token_of_a_call(model_path: Path) -> None:
    async def script(reply: Reply) -> None:
        for text in CALL:
            reply.text(text)
            reply.logprobs(common_pb2.TokenLogprobs(token_id=[5], logprob=[-0.5]))
            await reply.flush()
        reply.finish(completion_tokens=len(CALL))
        await reply.flush()

    async with serving(model_path, script, {}) as frontend:
        for stream in (False, True):
            response = await frontend.chat(tools=[WEATHER], logprobs=True, stream=stream)
            chunks = events(response.text) if stream else [response.json()]
            entries = [
                entry
                for chunk in chunks
                for choice in chunk["choices"]
                for entry in (choice["logprobs"] or {}).get("content", ())
            ]
            assert len(entries) == len(CALL)


@given(cuts=st.lists(st.integers(0, 200), max_size=12), family=st.booleans())
@settings(max_examples=60)
@pytest.mark.promise("S6-242")
async def test_stream_and_body_hold_the_same_however_rows_are_cut(
    hermes: Harness, thinker: Harness, cuts: list[int], family: bool
) -> None:
    said = THOUGHT + "Let me see. " + TWO + " Done."
    SCRIPT.says(*rows_of(said, cuts))
    frontend = thinker if family else hermes
    told = []
    for stream in (False, True):
        (message,) = await ask(frontend, stream=stream, tools=[WEATHER, CLOCK])
        told.append((message["content"], message.get("reasoning"), called(message)))
    assert told[0] == told[1]
    assert told[0][2] == [("weather", BERN), ("clock", "{}")]


# --- settings ---


async def test_a_model_whose_calls_nobody_knows_takes_no_tools(model_path: Path) -> None:
    async with serving(model_path, SCRIPT, {"model_family": "none"}) as frontend:
        refused = await frontend.chat(tools=[WEATHER])
        assert error_of(refused) == (400, "unsupported_parameter", "tools")
        SCRIPT.says("Well.")
        assert (await frontend.chat(tools=[WEATHER], tool_choice="none")).status_code == 200
        assert (await frontend.chat(**CHAT)).status_code == 200
