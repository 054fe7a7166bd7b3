"""Requests that a started engine runs before any client's: kernels are compiled when they are first
used. They hand over to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.engine.thread import first_requests
from tandem.errors import StartError
from tandem_vllm import outputs
from tandem_vllm.launch import Launched

_PROMPT_TOKENS = 4
_TOKENS = 4
_PLAIN = {"temperature": 0.0, "max_tokens": _TOKENS, "logprobs": 2, "prompt_logprobs": 1}
_DRAWN = {
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "seed": 1,
    "logit_bias": {0: 1.0},
    "max_tokens": _TOKENS,
}


_Kind = tuple[dict[str, Any], str]
"""Sampling parameters, and an adapter's name or nothing."""


async def run(launched: Launched, *, seconds: float) -> None:
    """Each kind by itself, then all in one batch: what is compiled for one row is compiled again
    for several. Each adapter by itself too, which reads the adapter's files: an adapter that vLLM
    cannot apply would end the engine at its first request. Raises StartError where they take more
    than `seconds`, or one fails.
    """
    batches: list[list[_Kind]] = [[(_PLAIN, "")], [(_DRAWN, "")], [(_PLAIN, ""), (_DRAWN, "")]]
    batches += [[(_PLAIN, name)] for name in launched.adapters]
    async with first_requests("vLLM", seconds):
        for number, batch in enumerate(batches):
            await _together(launched, number, batch)


async def _together(launched: Launched, number: int, batch: Sequence[_Kind]) -> None:
    names = {f"warm-up-{number}-{place}" for place in range(len(batch))}
    prompt = list(range(min(_PROMPT_TOKENS, launched.vocabulary)))
    for name, (sampling, adapter) in zip(sorted(names), batch, strict=True):
        given = {**sampling, "ignore_eos": True, "detokenize": False}
        made = launched.made(name, prompt, given, lora_adapter=adapter)
        await launched.client.add_request_async(made)
    while names:
        for output in (await launched.client.get_output_async()).outputs:
            if output.finish_reason is None:
                continue
            names.discard(output.request_id)
            if output.finish_reason != outputs.LENGTH:
                raise StartError("one ended by itself")
