"""A forced sequence is exact although two processes generate it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from stacks import MODEL, Served

SENTENCES = (
    "Hello world!",
    "Prefill made the first token.",
    "Decode made the rest.",
    "Exact.",
    "Two processes, one sequence of tokens, and nothing is lost between them.",
    "0123456789",
)


def _processor(served: Served, text: str) -> dict[str, Any]:
    answer = httpx.post(
        f"{served.url}/tokenize", json={"prompt": text, "add_special_tokens": False}
    )
    eos = served.eos_token_id
    return {
        "name": "forced_sequence",
        "args": {"token_ids": answer.json()["tokens"], "eos_token_id": eos},
    }


async def _ask(client: AsyncOpenAI, **fields: Any) -> Any:
    return await client.completions.create(model=MODEL, **({"max_tokens": 64} | fields))


@pytest.mark.promise("S1-043", "S1-051", "S1-050", "S3-087", "S3-089")
async def test_forced_and_free_requests_mixed_in_one_batch_keep_to_themselves(
    client: AsyncOpenAI, served: Served
) -> None:
    free_alone = await _ask(client, prompt="A class is", temperature=0, max_tokens=24)
    forced = [
        _ask(
            client,
            prompt=f"Prompt number {number}",
            temperature=0.7,
            extra_body={"logits_processors": [_processor(served, sentence)]},
        )
        for number, sentence in enumerate(SENTENCES)
    ]
    free = [_ask(client, prompt="A class is", temperature=0, max_tokens=24) for _ in range(4)]
    answers = await asyncio.gather(*forced, *free)
    texts = [answer.choices[0].text for answer in answers]
    assert tuple(texts[: len(SENTENCES)]) == SENTENCES
    assert all(a.choices[0].finish_reason == "stop" for a in answers[: len(SENTENCES)])
    assert set(texts[len(SENTENCES) :]) == {free_alone.choices[0].text}


@pytest.mark.promise("S3-091", "S1-042")
async def test_every_one_of_n_outputs_is_exact(client: AsyncOpenAI, served: Served) -> None:
    answer = await _ask(
        client,
        prompt="Say it",
        n=4,
        temperature=1.0,
        extra_body={"logits_processors": [_processor(served, SENTENCES[1])]},
    )
    assert [choice.text for choice in answer.choices] == [SENTENCES[1]] * 4


@pytest.mark.promise("S1-052")
async def test_a_prompt_prefilled_in_chunks_is_followed_by_the_exact_sequence(
    client: AsyncOpenAI, served: Served
) -> None:
    answer = await _ask(
        client,
        prompt=[5 + number % 200 for number in range(3000)],
        temperature=0.7,
        extra_body={"logits_processors": [_processor(served, SENTENCES[4])]},
    )
    assert answer.choices[0].text == SENTENCES[4]


@pytest.mark.promise("S3-094")
async def test_a_processor_that_clients_may_not_use_is_refused(served: Served) -> None:
    body = {
        "model": MODEL,
        "prompt": "x",
        "max_tokens": 4,
        "logits_processors": [{"name": "os.system", "args": {}}],
    }
    response = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)
    assert response.status_code == 400
    assert "os.system" in response.json()["error"]["message"]
