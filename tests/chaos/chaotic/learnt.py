"""What a real engine says when nothing fails: it is asked before anything does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import httpx
from sim_oracle import any_prompt
from stacks import MODEL

from chaotic.load import MOST_TOKENS

_PROMPTS = 40


class Learnt:
    """Knows the answers to some prompts."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, ...], list[int]] = {}

    async def learn(self, url: str, seed: int) -> None:
        """Ask a quiet stack, one prompt after the other."""
        rng = Random(seed)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for _ in range(_PROMPTS):
                prompt = any_prompt(rng)
                body = {"model": MODEL, "prompt": prompt, "max_tokens": MOST_TOKENS}
                body |= {"temperature": 0, "ignore_eos": True, "detokenize": False}
                answered = await client.post("/v1/completions", json=body)
                answered.raise_for_status()
                self._answers[tuple(prompt)] = answered.json()["choices"][0]["token_ids"]

    def prompt(self, rng: Random) -> list[int]:
        """One that was asked."""
        return list(rng.choice([*self._answers]))

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """Greedy answers are each other's beginnings."""
        return self._answers[tuple(prompt)][:count]
