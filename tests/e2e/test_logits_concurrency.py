"""Forced sequences at concurrency, through every process of a stack."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from openai import AsyncOpenAI
from stacks import MODEL, Served

REQUESTS = 64
WORDS = ("prefill", "decode", "exact", "token", "router", "page", "hook", "answer")


def _sentence(number: int) -> str:
    words = [WORDS[(number * step + step) % len(WORDS)] for step in range(1, 3 + number % 9)]
    return f"Request {number} says: {' '.join(words)}."


def _is_forced(number: int) -> bool:
    return number % 4 != 0


@pytest.mark.promise("S1-043", "S1-051", "S1-050", "S3-087", "S3-089")
async def test_forced_sequences_are_exact_at_64_mixed_requests_at_once(
    client: AsyncOpenAI, served: Served, model_path: Path
) -> None:
    """Streamed and not, prompts of all lengths, one in four without a processor."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))

    def processors(number: int) -> list[dict[str, Any]]:
        if not _is_forced(number):
            return []
        token_ids = tokenizer.encode(_sentence(number), add_special_tokens=False).ids
        args = {"token_ids": token_ids, "eos_token_id": served.eos_token_id}
        return [{"name": "forced_sequence", "args": args}]

    async def ask(number: int) -> str:
        forced = _is_forced(number)
        asked: dict[str, Any] = {
            "model": MODEL,
            "prompt": f"The for statement is used to {'iterate ' * (number % 40)}"
            if forced
            else "A class is",
            "max_tokens": 64 if forced else 20,
            "temperature": 0.8 if forced else 0.0,
            "extra_body": {"logits_processors": processors(number)},
        }
        if number % 2:
            answer = await client.completions.create(**asked)
            return answer.choices[0].text
        parts = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(**asked, stream=True)
            if chunk.choices
        ]
        return "".join(parts)

    alone = await ask(0)
    answers = await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
    wanted = [_sentence(number) if _is_forced(number) else alone for number in range(REQUESTS)]
    wrong = {number: [answers[number], wanted[number]] for number in range(REQUESTS)}
    wrong = {number: pair for number, pair in wrong.items() if pair[0] != pair[1]}
    assert not wrong, json.dumps(wrong, indent=1)
