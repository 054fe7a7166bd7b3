"""What clients are told of fields that nobody knows, of failures and of usage."""

from __future__ import annotations

from typing import Any

import pytest
from fake_router import Reply
from harness import Start, events, say_hello
from hypothesis import given
from hypothesis import strategies as st

from tandem.v1 import common_pb2
from tandem_answers import foreign as answers_foreign
from tandem_frontend.openai import foreign, strangers
from tandem_frontend.openai.reading.bodies import SMALL_BYTES, dropped_name

HEADER = "x-tandem-ignored-fields"
USER = {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": "Hi"}


@pytest.mark.promise("S6-300")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_an_unknown_field_is_ignored_named_and_counted(start: Start, size: int) -> None:
    frontend = await start(say_hello)
    messages = [
        USER | {"mood": "good"},
        ASSISTANT | {"mood": "bad"},
        {"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}]},
    ]
    response = await frontend.chat(messages=messages, invented={"deep": [1, "x" * size]})
    assert response.status_code == 200
    assert response.headers[HEADER] == "invented, messages[].mood, messages[].content[].colour"
    assert await frontend.metric("tandem_frontend_ignored_fields_total", field="_other") == 3
    body = {"messages": [USER | {"mood": "x" * size}], "invented": 1}
    tokens = await frontend.http.post("/tokenize", json=body)
    assert tokens.headers[HEADER] == "invented, messages[].mood"
    streamed = await frontend.chat(invented=1, stream=True)
    assert streamed.headers[HEADER] == "invented"
    assert HEADER not in (await frontend.chat()).headers


@pytest.mark.promise("S5-634")
async def test_what_is_dropped_is_counted_by_names_that_clients_add_nothing_to(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    web_search = {"type": "web_search_20250305", "name": "web_search"}
    text = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    for number in range(3):
        fields = {f"invented_{number}": 1, "verbosity": "low"}
        messages = [USER | {"content": [text]}]
        assert (await frontend.chat(messages=messages, tools=[web_search], **fields)).is_success
    name = "tandem_frontend_ignored_fields_total"
    for field in ("_other", "verbosity", "cache_control", "web_search"):
        assert await frontend.metric(name, field=field) == 3
    assert await frontend.metric(name) == 12, "there are no other names"


@pytest.mark.promise("S5-638")
async def test_a_field_that_another_dialect_applies_is_not_passed_over(start: Start) -> None:
    frontend = await start(say_hello, unknown_fields="warn")
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": "tandem-tiny", "input": "Hi"},
        "/v1/messages": {"model": "tandem-tiny", "max_tokens": 5, "messages": [USER]},
        "/v1/chat/completions": {"model": "tandem-tiny", "messages": [USER]},
    }
    for path, field, value in (
        ("/v1/responses", "prompt_logprobs", 1),
        ("/v1/messages", "echo", True),
        ("/v1/chat/completions", "output_config", {"effort": "low"}),
    ):
        refused = await frontend.http.post(path, json=bodies[path] | {field: value})
        assert refused.status_code == 400
        assert f"`{field}` is not supported" in refused.json()["error"]["message"]


@pytest.mark.promise("S5-638")
async def test_the_body_of_a_message_is_counted_as_it_is(start: Start) -> None:
    frontend = await start(say_hello, unknown_fields="refuse")
    generates = {"max_tokens": 5, "stream": True, "temperature": 0.5}
    body = {"model": "tandem-tiny", "messages": [USER]} | generates
    counted = await frontend.http.post("/v1/messages/count_tokens", json=body)
    assert counted.status_code == 200
    assert {*counted.headers[HEADER].split(", ")} == {*generates}


@pytest.mark.promise("S6-301")
@given(one=st.text("abc", max_size=5), other=st.text("abc", max_size=5))
def test_slips_are_the_fewest_that_make_one_name_of_the_other(one: str, other: str) -> None:
    def fewest(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        ways = [
            fewest(one[1:], other[1:]) + (one[0] != other[0]),
            fewest(one[1:], other) + 1,
            fewest(one, other[1:]) + 1,
        ]
        if one[:2] == other[1::-1] and len(one) > 1:
            ways.append(fewest(one[2:], other[2:]) + 1)
        return min(ways)

    assert strangers.slips(one, other) == fewest(one, other)


@pytest.mark.promise("S6-301")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sede", "seed"),
        ("shad", None),
        ("sed", "seed"),
        ("bulk", None),
        ("streem_options", "stream_options"),
        ("strem_optons", "stream_options"),
        ("strm_optons", None),
        ("m", None),
        ("x" * 10_000, None),
    ],
)
def test_a_long_name_may_have_two_slips_and_a_short_one_one(
    written: str, meant: str | None
) -> None:
    assert strangers.meant_by(written, frozenset({"n", "seed", "stream_options"})) == meant


@pytest.mark.promise("S6-303")
@pytest.mark.parametrize(
    ("code", "retries"), [("hook_failed", "false"), ("deadline_exceeded", "false"), ("x", None)]
)
async def test_what_would_fail_again_is_not_tried_again(
    start: Start, code: str, retries: str | None
) -> None:
    async def script(reply: Reply) -> None:
        reply.end(error=common_pb2.Error(code=code, message="It failed"))

    response = await (await start(script)).chat()
    assert response.status_code >= 500
    assert response.headers.get("x-should-retry") == retries


async def test_every_chunk_has_the_usage_of_its_choice_so_far(start: Start) -> None:
    async def script(reply: Reply) -> None:
        for output, text in ((0, "a"), (1, "b"), (1, "c")):
            reply.text(text, output=output)
            await reply.flush()
        reply.finish(output=0, completion_tokens=1)
        reply.finish(output=1, completion_tokens=2)

    frontend = await start(script)
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await frontend.chat(n=2, stream=True, stream_options=options)
    *chunks, last = events(response.text)
    counts = [(c["choices"][0]["index"], c["usage"]["completion_tokens"]) for c in chunks]
    assert counts == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 1), (1, 2)]
    prompt = last["usage"]["prompt_tokens"]
    assert all(c["usage"]["prompt_tokens"] == prompt for c in chunks)
    assert all(
        c["usage"]["total_tokens"] == prompt + c["usage"]["completion_tokens"] for c in chunks
    )
    assert last["usage"]["completion_tokens"] == 3
    assert response.text.count('"usage"') == len(chunks) + 1
    alone = await frontend.chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in events(alone.text))


def test_every_table_says_which_names_the_metric_has() -> None:
    both = vars(foreign) | vars(answers_foreign)
    tables = [each for name, each in both.items() if name.startswith("OF_")]
    known = [each for each in tables if not isinstance(each, frozenset)]
    dropped = {name for each in known for name, field in each.items() if field.dropped}
    assert len(known) > 15
    assert {name for name in dropped if dropped_name(f"a[].{name}") != name} == set()
