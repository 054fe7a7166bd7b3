"""Log-probabilities of prompts, through a whole stack of workers, on both engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import httpx
import pytest
from stacks import MODEL, Served

from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc

PROMPT = "The for statement is used to iterate over the elements of a sequence"


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        yield http


async def _completion(http: httpx.AsyncClient, **fields: Any) -> Any:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "temperature": 0} | fields
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _streamed(http: httpx.AsyncClient, **fields: Any) -> dict[str, list[Any]]:
    """The text and the lists of log-probabilities of one choice, joined as clients join them."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "stream": True}
    answer = await http.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    joined: dict[str, list[Any]] = {"text": []}
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            joined["text"].append(choice["text"])
            for name, items in (choice["logprobs"] or {}).items():
                joined.setdefault(name, []).extend(items)
    return joined


async def _tokens(http: httpx.AsyncClient) -> list[int]:
    answer = await http.post("/tokenize", json={"prompt": PROMPT})
    return list(answer.json()["tokens"])


@pytest.mark.promise("S6-331")
async def test_an_echoed_prompt_has_what_requests_for_its_parts_say_of_the_next_token(
    http: httpx.AsyncClient, served: Served
) -> None:
    # SGLang computes in bfloat16, and a part whose beginning is cached in other portions.
    exactly = served.engine == "sim"
    token_ids = await _tokens(http)
    whole = await _completion(http, echo=True, logprobs=20)
    shown = whole["choices"][0]["logprobs"]
    assert whole["choices"][0]["text"].startswith(PROMPT)
    assert len(shown["tokens"]) == len(token_ids) + 1
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None
    assert shown["text_offset"][0] == 0
    assert shown["text_offset"] == sorted(shown["text_offset"])
    parts = await asyncio.gather(
        *(_completion(http, prompt=token_ids[:place], logprobs=20) for place in range(1, 6))
    )
    for place, part in enumerate(parts, 1):
        expected = part["choices"][0]["logprobs"]["top_logprobs"][0]
        found = shown["top_logprobs"][place]
        common = expected.keys() & found.keys()
        assert len(common) >= (len(expected) if exactly else 15)
        near = pytest.approx([found[token] for token in common], abs=1e-4 if exactly else 0.2)
        assert [expected[token] for token in common] == near
        assert shown["token_logprobs"][place] == found[shown["tokens"][place]]


@pytest.mark.promise("S6-331")
async def test_a_stream_shows_the_prompts_before_any_of_the_output(http: httpx.AsyncClient) -> None:
    whole = (await _completion(http, echo=True, logprobs=2, max_tokens=5))["choices"][0]
    streamed = await _streamed(http, echo=True, logprobs=2, max_tokens=5)
    assert "".join(streamed.pop("text")) == whole["text"]
    assert streamed == whole["logprobs"]


@pytest.mark.promise("S6-331")
async def test_prompt_logprobs_are_in_vllms_shape(http: httpx.AsyncClient) -> None:
    token_ids = await _tokens(http)
    answer = await _completion(http, prompt_logprobs=3)
    choice = answer["choices"][0]
    assert choice["logprobs"] is None
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert len(rest) == len(token_ids) - 1
    for token_id, entry in zip(token_ids[1:], rest, strict=True):
        ranked = sorted((each["rank"], each["logprob"]) for each in entry.values() if each["rank"])
        assert [rank for rank, _ in ranked] == [1, 2, 3]
        assert [value for _, value in ranked] == sorted((v for _, v in ranked), reverse=True)
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}
        if len(entry) > 3:
            assert entry[str(token_id)]["rank"] is None
    echoed = await _completion(http, echo=True, logprobs=3)
    own = [entry[str(token)]["logprob"] for token, entry in zip(token_ids[1:], rest, strict=True)]
    assert echoed["choices"][0]["logprobs"]["token_logprobs"][1:-1] == own


@pytest.mark.promise("S6-331")
async def test_a_chat_has_those_of_its_prompt_beside_its_choices(http: httpx.AsyncClient) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
        "logprobs": True,
        "prompt_logprobs": 0,
    }
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert [len(entry) for entry in answer["prompt_logprobs"][1:]] == [1] * (
        answer["usage"]["prompt_tokens"] - 1
    )
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]


@pytest.mark.promise("S6-331")
async def test_each_prompt_and_each_choice_has_its_own(http: httpx.AsyncClient) -> None:
    prompts = ["one two three", "four five", "x"]
    alone = [
        (await _completion(http, prompt=prompt, echo=True, logprobs=1))["choices"][0]
        for prompt in prompts
    ]
    together = await _completion(http, prompt=prompts, echo=True, logprobs=1, n=2)
    found = [(each["text"], each["logprobs"]) for each in together["choices"]]
    assert found == [(each["text"], each["logprobs"]) for each in alone for _ in range(2)]


@pytest.mark.promise("S6-331")
async def test_a_large_prompt_comes_whole_and_in_order_beside_others(
    http: httpx.AsyncClient,
) -> None:
    token_ids = [7 + place * 31 % 900 for place in range(3000)]
    large, *small = await asyncio.gather(
        _completion(http, prompt=token_ids, prompt_logprobs=20),
        *(_completion(http, max_tokens=8) for _ in range(8)),
    )
    entries = large["choices"][0]["prompt_logprobs"]
    assert len(entries) == 3000
    assert all(str(t) in entry for t, entry in zip(token_ids[1:], entries[1:], strict=True))
    assert {each["choices"][0]["text"] for each in small} == {small[0]["choices"][0]["text"]}
    streamed = await _streamed(http, prompt=token_ids, echo=True, logprobs=5)
    assert len(streamed["token_logprobs"]) == 3001
    assert streamed["token_logprobs"].count(None) == 1


@pytest.mark.promise("S6-332")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 2, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 20, "prompt": [[9] * 3000] * 5}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "prompt": [9] * 3000, "n": 5}, "echo"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1} | fields
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.promise("S6-331")
async def test_generate_gives_each_output_the_same_numbers_as_http(
    served: Served, http: httpx.AsyncClient
) -> None:
    token_ids = await _tokens(http)
    task = common_pb2.Task(
        model=MODEL,
        prompt_token_ids=token_ids,
        sampling=common_pb2.SamplingParams(max_tokens=2, prompt_logprobs=3),
    )
    parts: list[list[common_pb2.TokenLogprobs]] = [[], []]
    finished = []
    async with grpc.aio.insecure_channel(served.stack.components["router"].address) as channel:
        call = router_pb2_grpc.RouterStub(channel).Generate(
            router_pb2.GenerateRequest(task=task, n=2), timeout=60
        )
        async for response in call:
            if response.HasField("prompt_logprobs"):
                assert response.output_index not in finished
                parts[response.output_index].append(response.prompt_logprobs)
            if response.HasField("finish"):
                finished.append(response.output_index)
    answer = await _completion(http, prompt=token_ids, prompt_logprobs=3)
    shown = answer["choices"][0]["prompt_logprobs"][1:]
    expected = [entry[str(t)]["logprob"] for t, entry in zip(token_ids[1:], shown, strict=True)]
    for said in parts:
        assert [token_id for part in said for token_id in part.token_id] == token_ids
        values = [value for part in said for value in part.logprob]
        assert values[1:] == pytest.approx(expected, abs=1e-4)
        assert sum(len(part.top_token_id) for part in said) == 3 * (len(token_ids) - 1)
