"""What clients of the OpenAI API get for good requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fake_router import Reply
from harness import (
    BOTH_WAYS,
    CHAT,
    COMPLETION,
    MODEL,
    Harness,
    Start,
    error_of,
    events,
    request_bytes,
    say_hello,
    stream_text,
)
from one_case import one_case

from tandem.v1 import common_pb2


@pytest.fixture
async def served(start: Start) -> Harness:
    return await start(say_hello)


def ends_of(response: httpx.Response, *, stream: bool) -> dict[int, dict[str, Any]]:
    """Each choice of a body; of a stream, the chunk of each that has its finish reason."""
    bodies = events(response.text) if stream else [response.json()]
    return {c["index"]: c for body in bodies for c in body["choices"] if c["finish_reason"]}


async def test_the_openai_client_gets_and_streams_answers_and_lists_the_model(start: Start) -> None:
    frontend = await start(say_hello)
    chats, completions = frontend.openai.chat.completions, frontend.openai.completions
    answer = await chats.create(**CHAT)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    stream = await chats.create(**CHAT, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert (last.choices, last.usage.completion_tokens) == ([], 3)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    text = await completions.create(**COMPLETION)
    assert (text.object, text.choices[0].text) == ("text_completion", "Hello!")
    streamed = await completions.create(**COMPLETION, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in streamed]) == "Hello!"
    assert [model.id async for model in await frontend.openai.models.list()] == [MODEL]
    assert (await frontend.openai.models.retrieve(MODEL)).id == MODEL


@pytest.mark.promise("S6-320")
async def test_the_openai_client_passes_comments_over(start: Start) -> None:
    async def script(reply: Reply) -> None:
        for text in ("Hel", "lo!"):
            await asyncio.sleep(0.1)
            reply.text(text)
        reply.finish(completion_tokens=2)

    frontend = await start(script, sse_keep_alive_seconds=0.01)
    chat = await frontend.openai.chat.completions.create(**CHAT, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chat]) == "Hello!"
    plain = await frontend.openai.completions.create(**COMPLETION, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in plain]) == "Hello!"
    assert (await frontend.complete(stream=True)).text.count(": keep-alive\n\n") > 1


async def test_choices_of_many_prompts_are_numbered_prompt_by_prompt(start: Start) -> None:
    async def script(reply: Reply) -> None:
        for output in range(reply.submit.n):
            reply.text(f"{reply.task.prompt_token_ids[0]}.{output}", output=output)
            reply.finish(output=output)

    frontend = await start(script)
    fields = {"prompt": [[11], [22, 23]], "n": 2}
    body = (await frontend.complete(**fields)).json()
    expected = ["11.0", "11.1", "22.0", "22.1"]
    assert [c["text"] for c in body["choices"]] == expected
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 3
    chunks = events((await frontend.complete(**fields, stream=True)).text)
    assert [stream_text(chunks, choice) for choice in range(4)] == expected


@pytest.mark.promise("S0-012")
async def test_rows_split_over_frames_at_will_give_the_same_answer_both_ways(start: Start) -> None:
    rows = [(0, "a", True), (1, "ü", False), (1, "", True), (0, "\n\n", False), (1, "🎉", True)]

    async def script(reply: Reply) -> None:
        for output, text, flush in rows:
            reply.text(text, output=output)
            if flush:
                await reply.flush()
        reply.finish(output=1, length=True)
        await reply.flush()
        reply.finish(output=0, stop_reason="END")

    frontend = await start(script)
    collected = (await frontend.chat(n=2)).json()["choices"]
    chunks = events((await frontend.chat(n=2, stream=True)).text)
    assert [c["message"]["content"] for c in collected] == ["a\n\n", "ü🎉"]
    assert [stream_text(chunks, choice) for choice in (0, 1)] == ["a\n\n", "ü🎉"]
    ends = {c["index"]: c for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    for choice in collected:
        assert choice["finish_reason"] == ends[choice["index"]]["finish_reason"]
        assert choice["stop_reason"] == ends[choice["index"]]["stop_reason"]
    assert (collected[0]["stop_reason"], collected[1]["finish_reason"]) == ("END", "length")


@BOTH_WAYS
async def test_the_stop_token_that_ended_a_choice_is_its_stop_reason(
    start: Start, stream: bool
) -> None:
    async def script(reply: Reply) -> None:
        assert list(reply.task.sampling.stop_token_ids) == [7]
        reply.text("a")
        reply.finish(stop_tokens=[7])

    frontend = await start(script)
    response = await frontend.chat(stop_token_ids=[7], stream=stream)
    (end,) = ends_of(response, stream=stream).values()
    assert (end["finish_reason"], end["stop_reason"]) == ("stop", 7)


@pytest.mark.promise("S0-029")
@BOTH_WAYS
async def test_a_sibling_ended_by_a_hook_finishes_with_its_reason(
    start: Start, stream: bool
) -> None:
    async def script(reply: Reply) -> None:
        reply.text("kept", output=1)
        await reply.flush()
        reply.finish(output=0, stop_reason="forbidden", completion_tokens=2)
        reply.end(output=1, stop_reason="forbidden")

    frontend = await start(script)
    response = await frontend.chat(n=2, stream=stream)
    found = ends_of(response, stream=stream)
    if stream:
        assert stream_text(events(response.text), 1) == "kept"
    else:
        # How far the sibling had come is chance: its tokens do not count.
        assert response.json()["usage"]["completion_tokens"] == 2
        assert found[1]["message"]["content"] == "kept"
    assert [found[i]["finish_reason"] for i in (0, 1)] == ["stop", "stop"]
    assert [found[i]["stop_reason"] for i in (0, 1)] == ["forbidden", "forbidden"]


@pytest.mark.promise("S0-024")
@BOTH_WAYS
async def test_without_detokenising_token_ids_come_instead_of_text(
    start: Start, stream: bool
) -> None:
    async def script(reply: Reply) -> None:
        assert reply.task.want_token_ids
        assert not reply.task.want_text
        reply.token_ids([5, 6], output=1)
        reply.token_ids([7], output=0)
        await reply.flush()
        reply.token_ids([8], output=0)
        reply.finish(output=0, completion_tokens=2)
        reply.finish(output=1, completion_tokens=2)

    frontend = await start(script)
    response = await frontend.complete(prompt=[1, 2], n=2, detokenize=False, stream=stream)
    found: dict[int, list[int]] = {0: [], 1: []}
    for body in events(response.text) if stream else [response.json()]:
        for choice in body["choices"]:
            assert choice["text"] == ""
            found[choice["index"]] += choice["token_ids"]
    assert found == {0: [7, 8], 1: [5, 6]}


async def test_rows_of_a_request_that_has_gone_do_not_shift_the_token_ids_of_others(
    start: Start,
) -> None:
    gone = asyncio.Event()

    async def script(reply: Reply) -> None:
        if not gone.is_set():
            gone.set()
            await reply.cancelled.wait()
            stale.append(reply)
            return
        stale[0].token_ids([900, 901])
        reply.token_ids([7])
        reply.finish()

    stale: list[Reply] = []
    frontend = await start(script)
    leaving = asyncio.create_task(frontend.complete(detokenize=False))
    await asyncio.wait_for(gone.wait(), 10)
    leaving.cancel()
    await frontend.router.until(lambda router: bool(router.cancels))
    answer = (await frontend.complete(detokenize=False)).json()
    assert answer["choices"][0]["token_ids"] == [7]


def _entry(*tokens: int) -> common_pb2.TokenLogprobs:
    return common_pb2.TokenLogprobs(
        token_id=tokens,
        logprob=[-0.5] * len(tokens),
        top_count=2,
        top_token_id=[t for token in tokens for t in (token, 4)],
        top_logprob=[v for _ in tokens for v in (-0.5, float("-inf"))],
    )


async def _logprobs_script(reply: Reply) -> None:
    reply.text("Hi", tokens=2)
    reply.logprobs(_entry(40, 41))
    await reply.flush()
    reply.text("", tokens=0)
    reply.text("!")
    reply.logprobs(_entry(4))
    reply.finish(completion_tokens=3)


async def test_chat_logprobs_name_tokens_with_their_bytes(start: Start) -> None:
    frontend = await start(_logprobs_script)
    fields = {"logprobs": True, "top_logprobs": 2}
    content = (await frontend.chat(**fields)).json()["choices"][0]["logprobs"]["content"]
    chunks = events((await frontend.chat(**fields, stream=True)).text)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for token in choice["logprobs"]["content"]
    ]
    assert content == streamed
    assert len(content) == 3
    assert bytes(content[2]["bytes"]).decode() == content[2]["token"] == "!"
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -9999.0]
    sampling = next(iter(frontend.router.replies.values())).task.sampling
    assert sampling.logprobs == 2


async def test_completion_logprobs_are_parallel_lists(start: Start) -> None:
    frontend = await start(_logprobs_script)
    answer = await frontend.openai.completions.create(**COMPLETION, logprobs=2)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 3
    assert found.text_offset == [0, len(found.tokens[0]), len("".join(found.tokens[:2]))]
    assert set(found.top_logprobs[0]) == {found.tokens[0], "!"}


@BOTH_WAYS
async def test_echo_begins_each_choice_with_its_prompt(start: Start, stream: bool) -> None:
    frontend = await start(say_hello)
    response = await frontend.complete(prompt=["One ", "Two "], n=2, echo=True, stream=stream)
    bodies = events(response.text) if stream else [response.json()]
    assert [stream_text(bodies, choice) for choice in range(4)] == [
        "One Hello!", "One Hello!", "Two Hello!", "Two Hello!",
    ]  # fmt: skip


async def test_every_sampling_field_reaches_the_workers(start: Start) -> None:
    frontend = await start(say_hello, client_logits_processors=("forced_sequence",))
    as_they_are = {
        "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": 2**63 - 1,
        "frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 1.5,
        "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": True,
    }  # fmt: skip
    response = await frontend.chat(
        **as_they_are,
        max_completion_tokens=9,
        logit_bias={"7": -100},
        priority=3,
        timeout=12.5,
        user="someone",
        logits_processors=[{"name": "forced_sequence", "args": {"token_ids": [1]}}],
    )
    assert response.status_code == 200, response.text
    reply = frontend.router.last
    sampling: Any = as_they_are | {"max_tokens": 9, "logit_bias": {7: -100}}
    assert reply.task.sampling == common_pb2.SamplingParams(**sampling)
    assert reply.submit.priority == 3
    assert 11_500 < reply.submit.timeout_ms <= 12_500  # what reading the body took is gone
    assert reply.submit.max_tokens == 9
    (processor,) = reply.task.logits.processors
    assert json.loads(processor.args_json) == {"token_ids": [1]}


async def test_defaults_are_openais_and_a_chat_may_fill_the_context(start: Start) -> None:
    frontend = await start(say_hello)
    await frontend.chat()
    await frontend.complete()
    chat, completion = frontend.router.replies.values()
    prompt = len(chat.task.prompt_token_ids)
    assert chat.submit.prompt_tokens == prompt
    assert chat.task.sampling == common_pb2.SamplingParams(
        max_tokens=4096 - prompt, temperature=1, top_p=1, top_k=-1, repetition_penalty=1
    )
    assert completion.task.sampling.max_tokens == 16
    assert completion.submit.timeout_ms == 600_000


@pytest.mark.promise("S5-221", "S6-446")
async def test_what_some_pairs_take_is_told_and_may_be_asked_for_and_is_no_default(
    start: Start,
) -> None:
    frontend = await start(say_hello, client_logits_processors=("come",))
    await frontend.set_fleet(
        context_length=100, longest_context=1_000, any_logits_processors=["come"]
    )
    (card,) = (await frontend.http.get("/v1/models")).json()["data"]
    tokens = (await frontend.http.post("/tokenize", json={"prompt": "Hello"})).json()
    assert (card["max_model_len"], tokens["max_model_len"]) == (1_000, 1_000)
    come = [{"name": "come", "args": {}}]
    assert (await frontend.chat()).status_code == 200
    assert (await frontend.chat(max_tokens=900, logits_processors=come)).status_code == 200
    assert (await frontend.complete(prompt=[5] * 99)).status_code == 200
    assert (await frontend.complete(prompt=[5] * 100)).status_code == 200
    assert (await frontend.complete(prompt=[5] * 1_000)).status_code == 400
    chat, asked, short, long = list(frontend.router.replies.values())[-4:]
    assert chat.submit.max_tokens == 100 - chat.submit.prompt_tokens
    assert asked.submit.max_tokens == 900
    assert short.submit.max_tokens == 1, "any pair may run it"
    assert long.submit.max_tokens == 16


async def test_text_parts_of_a_message_are_joined(start: Start) -> None:
    frontend = await start(say_hello)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await frontend.chat(messages=[{"role": "user", "content": parts}])
    await frontend.chat(messages=[{"role": "user", "content": "one\ntwo"}])
    first, second = frontend.router.replies.values()
    assert list(first.task.prompt_token_ids) == list(second.task.prompt_token_ids)


async def test_tokens_and_text_convert_both_ways(start: Start) -> None:
    frontend = await start(say_hello)
    for text in ("Grüße, 世界 🎉 <|im_end|>", "word " * 10_000):
        tokens = (await frontend.http.post("/tokenize", json={"prompt": text})).json()
        assert tokens["count"] == len(tokens["tokens"])
        back = await frontend.http.post("/detokenize", json={"tokens": tokens["tokens"]})
        assert back.json() == {"prompt": text}
    chat = await frontend.http.post("/tokenize", json={"messages": CHAT["messages"]})
    await frontend.chat()
    assert chat.json()["tokens"] == list(frontend.router.last.task.prompt_token_ids)


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.mark.promise("S6-146")
@BOTH_WAYS
async def test_the_ids_of_a_request_are_ours_whatever_its_client_sends(
    start: Start, stream: bool
) -> None:
    frontend = await start(say_hello)
    seen = set()
    for headers in (TRACEPARENT, TRACEPARENT, TRACEPARENT | {"x-request-id": TRACE}, {}):
        response = await frontend.http.post(
            "/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers
        )
        answer = events(response.text)[0] if stream else response.json()
        trace_id = response.headers["x-tandem-trace-id"]
        assert answer["id"] == f"chatcmpl-{trace_id}"
        seen.add(trace_id)
    asked = {reply.submit.trace_id for reply in frontend.router.replies.values()}
    assert {reply.task.trace_id for reply in frontend.router.replies.values()} == asked == seen
    assert len(seen) == 4
    assert TRACE not in seen


@pytest.mark.promise("S6-146")
async def test_a_gateway_that_is_trusted_gives_the_trace_and_not_the_answers_id(
    start: Start,
) -> None:
    """One trace may hold several requests."""
    frontend = await start(say_hello, trust_traceparent=True)
    completions = set()
    for _ in range(2):
        response = await frontend.http.post("/v1/chat/completions", json=CHAT, headers=TRACEPARENT)
        assert response.headers["x-tandem-trace-id"] == TRACE
        completions.add(response.json()["id"])
    assert len(completions) == 2
    assert f"chatcmpl-{TRACE}" not in completions
    assert {reply.submit.trace_id for reply in frontend.router.replies.values()} == {TRACE}
    fresh = await frontend.chat()
    assert fresh.headers["x-tandem-trace-id"] != TRACE


@pytest.mark.promise("S6-146")
@one_case(
    ("sent", "told"),
    [
        (b"abc-123", "abc-123"),
        (b"x" * 1000, "x" * 128),
        (b'a b\tc"<>;=\xff\xfe', 'abc"<>;='),
        (b"\x80\x81", None),
        (b"", None),
    ],
)
async def test_the_clients_own_name_for_its_request_comes_back_clean_and_short(
    served: Harness, sent: bytes, told: str | None
) -> None:
    for path in ("/v1/models", "/nothing"):
        headers = (await served.http.get(path, headers=[(b"x-request-id", sent)])).headers
        assert headers["x-request-id"] == (told or headers["x-tandem-trace-id"])


@BOTH_WAYS
async def test_a_report_tells_what_each_phase_did(start: Start, stream: bool) -> None:
    async def script(reply: Reply) -> None:
        assert reply.submit.want_report
        for phase, number in ((common_pb2.PHASE_PREFILL, 17), (common_pb2.PHASE_DECODE, 4)):
            reply.report(
                common_pb2.PhaseReport(phase=phase, worker="w", request_id=number, kv_bytes=9)
            )
        await say_hello(reply)

    frontend = await start(script, allow_reports=True)
    response = await frontend.chat(stream=stream, tandem={"report": True})
    report = (events(response.text)[-1] if stream else response.json())["tandem"]
    assert report["trace_id"] == response.headers["x-tandem-trace-id"]
    found = [(phase["phase"], phase["request_id"]) for phase in report["phases"]]
    assert found == [("prefill", 17), ("decode", 4)]
    assert 0 < report["ttft_seconds"] <= report["request_seconds"]


PREFILL, DECODE = common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE
TIMES: dict[str, tuple[list[Any], list[tuple[float, str]], tuple[float | str, ...]]] = {
    "prefill measures the hand-over": (
        [(PREFILL, 2.0, 9, 0.5), (DECODE, 3.0, 0, 0.0)],
        [(5.0, "all is full")], (5.0, "all is full", 1.5, 0.5, 1.0),
    ),
    "decode measures it": (
        [(PREFILL, 2.0, 0, 0.0), (DECODE, 3.0, 9, 0.25)], [(0.0, "")], (0.0, "", 1.75, 0.25, 1.0),
    ),
    "decode's figure holds its wait for prefill": (
        [(PREFILL, 2.0, 0, 0.0), (DECODE, 3.0, 9, 2.5)], [], (0.0, "", 0.0, 2.0, 1.0),
    ),
    "prefill says nothing": ([(DECODE, 3.0, 9, 0.5)], [], (0.0, "", 0.0, 0.5, 2.5)),
    "decode ended before prefill had its acknowledgement": (
        [(PREFILL, 2.0, 9, 0.5), (DECODE, 1.0, 0, 0.0)], [], (0.0, "", 1.5, 0.5, 0.0),
    ),
    "queued several times": (
        [(PREFILL, 1.0, 9, 0.5), (DECODE, 2.0, 0, 0.0)],
        [(1.0, "full"), (2.0, "full"), (0.0, ""), (4.0, "lost")],
        (7.0, "full; lost", 0.5, 0.5, 1.0),
    ),
}  # fmt: skip
"""What phases report (how long, with how many bytes, that took), what is said of the queue, and the
timeline that is told: in the queue, why, in prefill, for the KV cache, in decode.
"""


@pytest.mark.promise("S5-580")
@pytest.mark.parametrize("name", TIMES)
async def test_a_report_says_where_the_time_went_and_counts_no_second_twice(
    start: Start, name: str
) -> None:
    phases, queue, told = TIMES[name]

    async def script(reply: Reply) -> None:
        reply.queue_wait(100.0, "of another choice", output=1)
        for seconds, cause in queue:
            reply.queue_wait(seconds, cause)
        for phase, whole, size, kv in phases:
            reply.report(
                common_pb2.PhaseReport(
                    phase=phase, worker="w", phase_seconds=whole, kv_bytes=size, kv_seconds=kv
                )
            )
        for output in range(2):
            reply.text("Hi", output=output)
            reply.finish(output=output)

    frontend = await start(script, allow_reports=True)
    report = (await frontend.chat(n=2, tandem={"report": True})).json()["tandem"]
    names = ("queue_seconds", "queue_cause", "prefill_seconds", "kv_seconds", "decode_seconds")
    first, second = report["timeline"]
    spent = [
        each.pop(name) for name in ("read_seconds", "client_seconds") for each in (first, second)
    ]
    assert all(0 < each < report["request_seconds"] for each in spent)
    nothing = {"hooks_seconds": 0.0, "other_seconds": 0.0}
    waited, *others = told
    assert first.pop("queue_seconds") == pytest.approx(waited, abs=report["request_seconds"])
    assert second.pop("queue_seconds") == pytest.approx(100.0, abs=report["request_seconds"])
    assert first == {"choice": 0} | nothing | dict(zip(names[1:], others, strict=True))
    other = ("of another choice", 0.0, 0.0, 0.0)
    assert second == {"choice": 1} | nothing | dict(zip(names[1:], other, strict=True))


async def test_cached_tokens_are_in_the_usage(start: Start) -> None:
    async def script(reply: Reply) -> None:
        for output in range(2):
            reply.finish(output=output, completion_tokens=1, cached_tokens=4 + output)

    frontend = await start(script)
    prompts = ["one two three four five six seven", "seven six five four three two one"]
    usage = (await frontend.complete(prompt=prompts, n=2)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 10}
    assert usage["completion_tokens"] == 4


async def test_the_description_covers_every_path_and_the_page_loads_nothing_else(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    description = (await frontend.http.get("/openapi.json")).json()
    assert description["openapi"] == "3.1.0"
    fields = description["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    for path, operations in description["paths"].items():
        (method,) = operations
        assert (await frontend.http.request(method, path)).status_code != 405
    page = (await frontend.http.get("/docs")).text
    assert "POST /v1/chat/completions" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


async def test_the_root_names_what_there_is_and_sends_a_browser_to_a_page(start: Start) -> None:
    frontend = await start(say_hello, playground=True)
    paths = (await frontend.http.get("/")).json()["paths"]
    assert {"/v1/chat/completions", "/docs", "/openapi.json", "/health", "/playground"} <= set(
        paths
    )
    described = (await frontend.http.get("/openapi.json")).json()["paths"]
    assert set(paths) == {*described, "/playground"}
    sent = await frontend.http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert (sent.status_code, sent.headers["location"]) == (307, "/playground")
    assert (await frontend.http.get("/playground")).status_code == 200


async def test_metrics_are_at_zero_from_the_start_and_count_what_happens(start: Start) -> None:
    frontend = await start(say_hello)
    assert (await frontend.http.get("/metrics")).status_code == 404  # not for clients
    requests = "tandem_frontend_requests_total"
    for outcome in ("success", "queue_full", "hook_failed", "invalid_request"):
        assert await frontend.metric(requests, outcome=outcome) == 0
    await frontend.chat(stream=True)
    await frontend.complete(n=0)
    assert await frontend.metric(requests, endpoint="chat_completions", outcome="success") == 1
    assert await frontend.metric(requests, endpoint="completions", outcome="invalid_request") == 1
    assert await frontend.metric("tandem_frontend_ttft_seconds_count") == 1
    assert await frontend.metric("tandem_frontend_itl_seconds_count") == 2
    assert await frontend.metric("tandem_frontend_completion_tokens_total") == 3
    assert await frontend.metric("tandem_frontend_prompt_tokens_total") > 3


@pytest.mark.promise("S0-038")
@pytest.mark.parametrize("by", ["decode's hook", "prefill's hook"])
async def test_usage_counts_what_was_withheld_alike_in_both_modes(start: Start, by: str) -> None:
    async def script(reply: Reply) -> None:
        if by == "prefill's hook":
            reply.end(output=0, stop_reason="forbidden", completion_tokens=5)
            reply.end(output=1, stop_reason="forbidden")
            return
        for output, tokens in ((0, 1), (1, 4)):
            reply.text("shown", output=output)
            await reply.flush()
            reply.finish(output=output, completion_tokens=tokens)  # three were withheld

    frontend = await start(script)
    collected = (await frontend.chat(n=2)).json()["usage"]
    streamed = await frontend.chat(n=2, stream=True, stream_options={"include_usage": True})
    assert events(streamed.text)[-1]["usage"] == collected
    assert collected["completion_tokens"] == 5


async def test_an_end_with_more_tokens_than_can_be_fails_its_request(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.end(stop_reason="forbidden", completion_tokens=2**32 - 1)

    frontend = await start(script)
    assert error_of(await frontend.chat())[:2] == (502, "worker_error")


async def say_megabytes(reply: Reply) -> None:
    """More than sockets buffer."""
    for _ in range(300):
        reply.text("x" * 10_000)
        await reply.flush()
    reply.finish(completion_tokens=300)
    await reply.flush()


@pytest.mark.parametrize("asks", ["close", "keep-alive"])
@pytest.mark.parametrize("answer", [say_hello, say_megabytes], ids=["little", "much"])
async def test_a_stream_to_http_1_0_is_not_in_chunks_and_ends_its_connection(
    start: Start, answer: Callable[[Reply], Awaitable[None]], asks: str
) -> None:
    """What was said to HTTP/1.1 is said, whether the client would keep the connection or not."""
    frontend = await start(answer, max_backlog_bytes=8 * 1024 * 1024)
    body = json.dumps(CHAT | {"stream": True}).encode()
    head = b"connection: %b\r\n" % asks.encode()
    sent = request_bytes(body, head=head).replace(b"HTTP/1.1", b"HTTP/1.0")
    got = await frontend.raw(sent, until_closed=True)
    head, _, events_text = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert head.count(b"connection: close") == 1
    said = stream_text(events(events_text.decode()))
    modern = await frontend.chat(stream=True)
    assert said == stream_text(events(modern.text))
    collected = request_bytes(json.dumps(CHAT).encode()).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert b"content-length" in await frontend.raw(collected, until_closed=True)
