"""What a user of the official OpenAI client sees, over both engines."""

from __future__ import annotations

from typing import Any

import httpx
from openai import AsyncOpenAI
from stacks import MODEL, Served

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about the for statement."}]
PROMPT = "The for statement is used to"


async def _stream_chat(client: AsyncOpenAI, **fields: Any) -> tuple[str, list[Any]]:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, **fields
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    return text, chunks


async def test_a_streamed_chat_and_a_whole_one_have_the_same_content(client: AsyncOpenAI) -> None:
    text, chunks = await _stream_chat(
        client, temperature=0, max_tokens=24, stream_options={"include_usage": True}
    )
    whole = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=24
    )
    assert text
    assert whole.choices[0].message.content == text
    assert chunks[0].choices[0].delta.role == "assistant"
    finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    streamed, counted = chunks[-1].usage, whole.usage
    assert streamed is not None
    assert counted is not None
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (
        counted.prompt_tokens,
        counted.completion_tokens,
    )
    assert 1 <= counted.completion_tokens <= 24


async def test_length_ends_at_exactly_max_tokens(client: AsyncOpenAI) -> None:
    for tokens in (1, 2, 17):
        answer = await client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=tokens,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == tokens


async def test_n_outputs_are_separate_and_seeded_ones_repeat(client: AsyncOpenAI) -> None:
    async def ask() -> list[str]:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, n=3, max_tokens=12, temperature=1.0, seed=7
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    first = await ask()
    assert len(set(first)) > 1
    assert await ask() == first


async def test_a_list_of_prompts_gives_a_choice_for_each(client: AsyncOpenAI) -> None:
    prompts = [PROMPT, "A class definition is"]
    together = await client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=8, temperature=0
    )
    alone = [
        await client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
        for prompt in prompts
    ]
    assert [c.text for c in together.choices] == [answer.choices[0].text for answer in alone]


async def test_token_ids_come_back_when_text_is_not_wanted(
    client: AsyncOpenAI, served: Served
) -> None:
    prompt_ids = httpx.post(f"{served.url}/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    by_text = await client.completions.create(prompt=PROMPT, **fields)
    by_ids = await client.completions.create(
        prompt=prompt_ids, **fields, extra_body={"detokenize": False}
    )
    ids = by_ids.choices[0].model_dump()["token_ids"]
    assert by_ids.choices[0].text == ""
    decoded = httpx.post(f"{served.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert decoded.startswith(by_text.choices[0].text)
    assert by_text.usage == by_ids.usage


async def test_echo_puts_the_prompt_before_the_answer(client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "temperature": 0}
    plain = await client.completions.create(**fields)
    echoed = await client.completions.create(**fields, echo=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text


async def test_logprobs_are_there_for_each_token(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        # Greedy: what was chosen is the likeliest.
        assert entry.token == entry.top_logprobs[0].token


async def test_a_client_that_reads_more_slowly_than_much_comes_gets_all_of_it(sim: Served) -> None:
    """Some 4 MB come at once, and this client needs seconds for them."""
    asked = {"n": 128, "max_tokens": 16, "logprobs": True, "top_logprobs": 20}
    async with AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="-", max_retries=0) as client:
        _, chunks = await _stream_chat(client, **asked, extra_body={"ignore_eos": True})
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert sum(choice.finish_reason == "length" for choice in choices) == 128
    assert sum(len(c.logprobs.content or ()) for c in choices if c.logprobs) == 128 * 16


async def test_a_report_names_both_phases_and_what_crossed(
    client: AsyncOpenAI, served: Served
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, extra_body={"tandem": {"report": True}}
    )
    report = answer.model_dump()["tandem"]
    phases = {phase["phase"]: phase for phase in report["phases"]}
    assert phases.keys() == {"prefill", "decode"}
    apart = phases["prefill"]["worker"] != phases["decode"]["worker"]
    assert apart is not served.aggregated
    assert all(phase["request_id"] > 0 for phase in phases.values())
    assert (max(phase["kv_bytes"] for phase in phases.values()) > 0) is apart
