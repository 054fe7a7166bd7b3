"""Random requests that ask for everything an engine can do, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

PROCESSORS = ("no_repeat_ngram", "temperature_schedule", "banned_tokens")
"""What the frontend and the router must allow."""
_LENGTHS = (1, 2, 3, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 250, 400)
"""Tokens of a prompt: around the ends of pages, and others."""
_SHARED = 96
"""Tokens with which half of the prompts begin."""
_VOCABULARY = range(100, 1900)
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
_FORMS: tuple[Mapping[str, Any], ...] = (
    {"guided_regex": "[a-z]{3,9}( [a-z]{1,5}){1,6}"},
    {"guided_json": _SCHEMA},
    {"guided_choice": ["yes", "no", "not at all", "perhaps tomorrow"]},
    {"guided_grammar": 'root ::= "go " dir (" and " dir)*\ndir ::= "left" | "right"'},
)


def _drawn(rng: Random) -> dict[str, Any]:
    fields = {"temperature": rng.choice([0.3, 0.8, 1.0, 1.6]), "seed": rng.getrandbits(48)}
    for name, values in (("top_p", [0.5, 0.9]), ("top_k", [3, 40]), ("min_p", [0.02, 0.1])):
        if rng.random() < 0.4:
            fields[name] = rng.choice(values)
    if rng.random() < 0.3:
        fields["n"] = rng.randint(2, 3)
    return fields


def _penalties(rng: Random) -> dict[str, Any]:
    return {
        "frequency_penalty": rng.choice([0.0, 0.7, 1.5, -0.4]),
        "presence_penalty": rng.choice([0.0, 0.6]),
        "repetition_penalty": rng.choice([1.0, 1.3]),
    }


def _processors(rng: Random) -> dict[str, Any]:
    banned = [rng.choice(_VOCABULARY) for _ in range(200)]
    given: dict[str, Any] = {
        "no_repeat_ngram": {"size": 2},
        "temperature_schedule": {"points": [[0, 1.0], [10, 0.2]]},
        "banned_tokens": {"token_ids": banned},
    }
    chosen = rng.sample(PROCESSORS, rng.randint(1, len(PROCESSORS)))
    return {"logits_processors": [{"name": name, "args": given[name]} for name in chosen]}


_EXTRAS: tuple[tuple[float, Callable[[Random], dict[str, Any]]], ...] = (
    (0.7, _drawn),
    (0.4, _penalties),
    (0.3, _processors),
    (0.3, lambda rng: {"logit_bias": {str(rng.choice(_VOCABULARY)): rng.uniform(-8, 8)}}),
    (0.4, lambda rng: {"logprobs": rng.randint(0, 5)}),
    (0.3, lambda rng: {"stop": rng.sample(["e", " the", "in", "\n", "s "], rng.randint(1, 3))}),
    (0.2, lambda rng: {"min_tokens": rng.randint(1, 6)}),
    (0.2, lambda rng: {"cache_salt": rng.choice(["acme", "umbrella"])}),
    (0.15, lambda rng: {"echo": True, "logprobs": 2}),
)
"""How often requests have what."""


def mixed(count: int, seed: int) -> list[dict[str, Any]]:
    """Fields of so many completions."""
    rng = Random(seed)
    shared = [rng.choice(_VOCABULARY) for _ in range(_SHARED)]
    return [_request(rng, shared) for _ in range(count)]


def _request(rng: Random, shared: list[int]) -> dict[str, Any]:
    tokens = [rng.choice(_VOCABULARY) for _ in range(rng.choice(_LENGTHS))]
    fields: dict[str, Any] = {
        "prompt": [*shared, *tokens] if rng.random() < 0.5 else tokens,
        "max_tokens": rng.randint(1, 96),
        "ignore_eos": rng.random() < 0.6,
    }
    for share, extra in _EXTRAS:
        if rng.random() < share:
            fields |= extra(rng)
    if rng.random() < 0.25:
        fields |= rng.choice(_FORMS) | {"ignore_eos": False}
        fields.pop("logits_processors", None)  # they could leave a form no token
        fields.pop("min_tokens", None)
    return fields
