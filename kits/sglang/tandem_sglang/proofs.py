"""What a started engine is asked to prove of units (units.py) before a client asks for anything:
not that SGLang has the names, but that what comes out is what a plain count says.

Each proof returns what came out otherwise; empty: all as it should be. Nothing here depends on the
model: biases decide which tokens come, or two requests that differ in one thing are compared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tandem.errors import ContradictionError
from tandem_sglang import requests
from tandem_sglang.chunks import Ended

PROMPT: Final = (0, 1, 2, 3)
_MADE = 2
"""So many of the prompt are output of another engine."""
_FLAT = 1e4
"""A temperature at which a model's logits are as good as equal."""
_SEED, _CANDIDATES = 7, 16
_CLEAR = 0.05
"""Two candidates are no nearer each other, where the first of them has to be drawn."""
_PENALTY = 2.0
"""SGLang takes no larger one."""
_NEAR = _PENALTY / 4
_CHOSEN, _SECOND = 3, 0
"""Tokens of the prompt: one that comes each time, and the likeliest beside it, which never does."""
_BIASES: Final = {str(_CHOSEN): 200.0, str(_SECOND): 100.0}
_NEVER_SAID = "☃" * 9
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Generated:
    """What came of a request."""

    tokens: Sequence[int | None]
    """In order; None: a token that nobody chose, with which decode begins where nobody sent any."""
    second: Sequence[float]
    """For each token the log-probability of the second likeliest."""
    end: Ended


class Ask(Protocol):
    """Runs a greedy request of PROMPT, with these of SGLang's sampling parameters besides. Where
    nobody sends decode its first token, SGLang makes one of the request's name: requests of one
    `number`, one after the other, have the same name.
    """

    def __call__(self, sampling: dict[str, Any], number: int = 0) -> Awaitable[Generated]: ...


Proof = Callable[[Ask], Awaitable[str]]


async def drawn_by_seed(ask: Ask) -> str:
    """All candidates are equally likely, so that the noise of seed, position and id decides."""
    answer = await ask(
        {
            "temperature": _FLAT,
            "top_k": -1,
            "sampling_seed": _SEED,
            "logit_bias": {str(token): 64 * _FLAT for token in range(_CANDIDATES)},
        }
    )
    for place, token in enumerate(answer.tokens):
        position = len(PROMPT) + place - 1
        noise = {each: _noise(_SEED, position, each) for each in range(_CANDIDATES)}
        second, first = sorted(noise, key=noise.__getitem__)[-2:]
        if token is not None and token != first and noise[first] - noise[second] > _CLEAR:
            return f"seed {_SEED} drew token {token} at position {position}, which is {first}"
    return ""


async def penalties_counted(ask: Ask) -> str:
    """Requests put out the same tokens, one of them with penalties: by these alone the second
    token's log-probability differs, which gains on the chosen one what that one's count takes.
    """
    chosen = {"logit_bias": _BIASES, "custom_params": {requests.MADE_KEY: _MADE}}
    free = await ask(chosen)
    penalised = await ask(chosen | {"frequency_penalty": _PENALTY, "presence_penalty": _PENALTY})
    again = await ask(chosen)
    put_out: list[int | None] = list(PROMPT[-_MADE:])
    for place, token in enumerate(penalised.tokens):
        if token is not None:
            count = put_out.count(_CHOSEN)
            expected = _PENALTY * count + _PENALTY * (count > 0)
            found = penalised.second[place] - free.second[place]
            # Decode has no KV of the prompt: where that is not the same each time, no count is.
            same = abs(again.second[place] - free.second[place]) < _NEAR
            if same and not abs(found - expected) < _NEAR:
                return f"{count} outputs of a token cost it {found:.2f} and not {expected:.2f}"
        put_out.append(token)
    return ""


async def forms_fail_alone(ask: Ask) -> str:
    """What another engine is to have made does not fit the form."""
    never = {"regex": _NEVER_SAID, "custom_params": {requests.MADE_KEY: _MADE}}
    failed, beside = await asyncio.gather(ask(never), ask({}, 1))
    if not isinstance(failed.end.error, ContradictionError):
        return f"a form that fails did not end its request ({failed.end.error})"
    if beside.end.error is not None:
        return f"a form that fails ended the request beside it ({beside.end.error})"
    return ""


def _noise(seed: int, position: int, token: int) -> float:
    """Gumbel noise of MurmurHash3, as drawing.py says what a row draws."""
    state = 0
    for block in (seed & _WORD, seed >> 32, position, token):
        block = _turned(block * 0xCC9E2D51, 15) * 0x1B873593 & _WORD
        state = (_turned(state ^ block, 13) * 5 + 0xE6546B64) & _WORD
    state ^= 16
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    share = min(max((state ^ state >> 16) / _WORD, 2.0**-33), 1 - 2.0**-33)
    return -math.log(-math.log(share))


def _turned(word: int, bits: int) -> int:
    word &= _WORD
    return (word << bits | word >> 32 - bits) & _WORD
