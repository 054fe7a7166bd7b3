"""Requests whose answers must not depend on what shares their batches."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from typing import Any

from logits_cases import Given
from logits_pair import spec_of, tokens_of
from worker_pair import Pair, Sequence_

from tandem.v1 import common_pb2

TOKENS = 14
TOGETHER = 15
"""Below what the workers of the contract run at once."""
PROMPTS = ([5, 9, 300, 41, 77, 1200], [601, 602, 7, 8, 900, 31, 55, 1024, 640])
SEEDED = {"temperature": 1.0, "seed": 11}
PENALTIES = {"frequency_penalty": 0.9, "presence_penalty": 0.4, "repetition_penalty": 1.3}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": SEEDED,
    "hot": {"temperature": 1.8, "seed": 2**62 + 5},
    "top_k": SEEDED | {"top_k": 20},
    "top_p": SEEDED | {"top_p": 0.7},
    "min_p": SEEDED | {"min_p": 0.02},
    "filters": SEEDED | {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 0.8},
    "penalties": PENALTIES,
    "seeded penalties": SEEDED | PENALTIES | {"top_p": 0.9},
    "bias": SEEDED | {"logit_bias": {17: 6.0, 18: -4.0}},
    "processor": {},
    "seeded processor": SEEDED,
    "counting processor": {},
    "processor of history": SEEDED | {"top_p": 0.9},
    "penalised processors": SEEDED | PENALTIES | {"top_k": 30},
    "short": SEEDED | {"temperature": 1.8, "ignore_eos": False},
    "regex": {"ignore_eos": False},
    "seeded regex": SEEDED | {"ignore_eos": False},
    "JSON": {"ignore_eos": False},
    "seeded JSON": SEEDED | {"ignore_eos": False, "min_p": 0.01},
    "regex and processor": SEEDED | {"ignore_eos": False, "top_p": 0.95},
    "prompt's": {"prompt_logprobs": 2},
    "seeded prompt's": SEEDED | {"prompt_logprobs": 3, "top_k": 25},
}
WATERMARK: Given = ("watermark", {"key": "rows", "delta": 12.0, "width": 2})
REGEX: Given = ("regex", {"pattern": "[a-z]{2,9}( [a-z]{2,9}){1,20}[.]"})
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}},
    "required": ["word", "count"],
    "additionalProperties": False,
}
JSON: Given = ("json_schema", {"schema": SCHEMA})
PROCESSORS: dict[str, tuple[Given, ...]] = {
    "processor": (("banned_tokens", {"token_ids": list(range(2, 900))}),),
    "seeded processor": (("bias", {"bias": {"17": 9.0, "18": 8.0}}),),
    "counting processor": (("counted", {"token_ids": [400, 401, 402]}),),
    "processor of history": (WATERMARK,),
    "penalised processors": (
        ("allowed_tokens", {"token_ids": list(range(70, 90)), "with_eos": False}),
        ("no_repeat_ngram", {"size": 2}),
    ),
    "short": (("stop_at_sentence", {"after": 4, "marks": "aeiou"}),),
    "regex": (REGEX,),
    "seeded regex": (REGEX,),
    "JSON": (JSON,),
    "seeded JSON": (JSON,),
    "regex and processor": (REGEX, WATERMARK),
}
"""What the rows of a kind are edited by, forms among them; the other kinds have none."""
UNFILTERED = ("greedy", "seeded", "hot", "penalties", "bias")


async def begin(
    pair: Pair,
    kind: str,
    prompt: Sequence[int],
    *,
    made: Sequence[int] = (),
    **more: Any,
) -> Sequence_:
    """`made`: what a lost worker had made of it."""
    task: dict[str, Any] = {
        "prompt_text": "",
        "prompt_token_ids": prompt,
        "want_token_ids": True,
    }
    if kind in PROCESSORS:
        task["logits"] = spec_of(*PROCESSORS[kind])
    if made:
        steps = [common_pb2.TokenLogprobs(token_id=[token]) for token in made]
        task["resume"] = common_pb2.Resumption(step=steps)
    return await pair.start(task=task, **({"max_tokens": TOKENS} | KINDS[kind] | more))


async def finished(pair: Pair, sequence: Sequence_) -> list[int]:
    """Its token ids."""
    await pair.finished_well(sequence)
    return tokens_of(sequence)


async def alone(pair: Pair, kind: str, prompt: Sequence[int], **more: Any) -> Sequence_:
    """Runs while nothing else does."""
    sequence = await begin(pair, kind, prompt, **more)
    await finished(pair, sequence)
    return sequence


def mixtures(number: int, kinds: Sequence[str]) -> list[list[tuple[str, list[int]]]]:
    """Random neighbours, with some prompts: no kind comes again before all others have come."""
    random_ = random.Random(17)
    dealt: list[str] = []
    while len(dealt) < number * TOGETHER:
        dealt += random_.sample(kinds, len(kinds))
    return [
        [(kind, random_.choice(PROMPTS)) for kind in dealt[first : first + TOGETHER]]
        for first in range(0, number * TOGETHER, TOGETHER)
    ]


def noise(seed: int, position: int, token: int) -> float:
    """What is added to a token's log-probability, divided by the temperature: Gumbel's, of
    MurmurHash3.
    """
    state = 0
    for block in struct.unpack("<4I", struct.pack("<QII", seed, position, token)):
        mixed = _rotate(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        state = (_rotate(state ^ mixed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFF
    uniform = min(max((state ^ (state >> 16)) / 0xFFFFFFFF, 2.0**-33), 1 - 2.0**-33)
    return -math.log(-math.log(uniform))


def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & 0xFFFFFFFF
