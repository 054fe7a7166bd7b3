"""Requests that a started engine runs before any client's, as SGLang's own server does: kernels are
compiled when they are first used, which may take minutes on a GPU. They hand over to nobody.

One of them fails by its logits processors, and has to end so, and alone: what SGLang does there
otherwise than Tandem expects would end a scheduler with the first client's request. And units prove
what they are for (proofs.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple

from tandem.engine.base import Role
from tandem.engine.thread import first_requests
from tandem.errors import ProcessorError, StartError
from tandem.logits.spec import LogitsProcessorEntry, write_entries
from tandem.v1 import common_pb2
from tandem_sglang import chunks, requests
from tandem_sglang.launch import Launched
from tandem_sglang.proofs import PROMPT, Ask, Generated, Proof
from tandem_sglang.validation import EngineBounds

log = logging.getLogger(__name__)
_NOBODY = "2.2.2.2"
"""SGLang's FAKE_BOOTSTRAP_HOST: KV that is sent there, or awaited from there, has moved at once."""
_TOKENS = 8
_GRAMMAR = {"regex": r"[\s\S]*"}
"""Any text fits it: decode begins with a token that nobody chose."""


_FAILING = {
    "custom_params": {
        requests.MADE_KEY: 0,
        requests.SPEC_KEY: write_entries([LogitsProcessorEntry("unknown")]),
        requests.HISTORY_KEY: False,
        requests.BIAS_KEY: "",
    }
}
"""No worker has a processor of that name."""


class _Kind(NamedTuple):
    sampling: Mapping[str, Any]
    lora_adapter: str | None = None
    fails: bool = False
    """A logits processor is to end it."""


async def run(
    launched: Launched,
    bounds: EngineBounds,
    *,
    grammars: bool,
    processors: bool,
    lora_adapters: Sequence[str] = (),
    proofs: Mapping[str, Proof] = {},
    ranks: int = 1,
    seconds: float,
) -> dict[str, str]:
    """One request of each kind that kernels differ by, on each of so many data-parallel ranks:
    first by itself, because what is compiled for one row is compiled again for several, then all in
    one batch. Those with LoRA adapters, which may be more than a batch takes, show besides that
    each fits the model.

    `grammars`: SGLang applies some. `processors`: it applies logits processors. `proofs`: of units,
    by name; returned is what came out otherwise, of those that did not prove what they are for.
    Raises StartError where all takes more than `seconds`, or a request ends otherwise than it
    should.
    """
    began = time.monotonic()
    kinds = [_Kind(_plain()), _Kind(_drawn(bounds))]
    if grammars:
        kinds.append(_Kind(_plain() | _GRAMMAR))
    if processors:
        kinds.append(_Kind(_plain() | _FAILING, fails=True))
    kinds += [_Kind(_plain(), name) for name in lora_adapters]
    rooms = itertools.count(ranks)  # prefill finds a room's rank by the remainder
    async with first_requests("SGLang", seconds):
        for batch in (*([kind] for kind in kinds), kinds):
            async with asyncio.TaskGroup() as together:
                for kind, rank in itertools.product(batch, range(ranks)):
                    sent = _run(launched, bounds, kind, room=next(rooms), rank=rank)
                    together.create_task(sent)

        first = next(room for room in rooms if room % ranks == 0)

        def ask(sampling: dict[str, Any], number: int = 0) -> Awaitable[Generated]:
            kind, room = _Kind(_plain() | sampling), first + number * ranks
            return _generate(launched, bounds, kind, room=room, rank=0)

        came = {unit: await _came_of(proof, ask) for unit, proof in proofs.items()}
    log.info("the engine is warm", extra={"seconds": round(time.monotonic() - began, 1)})
    return {unit: otherwise for unit, otherwise in came.items() if otherwise}


async def _came_of(proof: Proof, ask: Ask) -> str:
    try:
        return await proof(ask)
    except (LookupError, TypeError, ValueError) as error:  # of an answer of another shape
        return f"an answer that cannot be read ({error!r})"


async def _run(
    launched: Launched, bounds: EngineBounds, kind: _Kind, *, room: int, rank: int
) -> None:
    end = (await _generate(launched, bounds, kind, room=room, rank=rank)).end
    if kind.fails and not isinstance(end.error, ProcessorError):
        raise StartError(f"a logits processor that fails did not end its request ({end.error})")
    if end.error is not None and not kind.fails:
        raise StartError(str(end.error))


async def _generate(
    launched: Launched, bounds: EngineBounds, kind: _Kind, *, room: int, rank: int
) -> Generated:
    fields: dict[str, Any] = {
        "rid": requests.rid(-room),
        "input_ids": [token for token in PROMPT if token < bounds.vocabulary],
        "sampling_params": dict(kind.sampling),
        "lora_path": kind.lora_adapter,
        "stream": True,
        "routed_dp_rank": rank,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 2,
    }
    if bounds.role is not Role.AGGREGATED:
        fields |= {"bootstrap_host": _NOBODY, "bootstrap_port": 0, "bootstrap_room": room}
    if kind.fails:
        fields["custom_logit_processor"] = launched.processor
    end = None
    tokens: list[int | None] = []
    second: list[float] = []
    request = launched.messages.GenerateReqInput(**fields)
    async for chunk in launched.manager.generate_request(request, None):
        tokens += chunk["output_ids"]
        top = chunk["meta_info"].get("output_top_logprobs") or ()
        second += [of_token[1][0] if of_token else math.nan for of_token in top]
        end = chunks.end_of(chunk["meta_info"])
    if end is None:
        raise StartError("no end")
    if bounds.role is Role.DECODE:
        tokens[:1] = [None]
    return Generated(tokens, second, end)


def _plain() -> dict[str, Any]:
    greedy = common_pb2.SamplingParams(
        max_tokens=_TOKENS, top_p=1.0, top_k=1, repetition_penalty=1.0, ignore_eos=True
    )
    return requests.sampling_params(greedy)


def _drawn(bounds: EngineBounds) -> dict[str, Any]:
    """With everything that has a kernel of its own."""
    return requests.sampling_params(
        common_pb2.SamplingParams(
            max_tokens=_TOKENS,
            temperature=0.8,
            top_p=0.9,
            top_k=min(20, bounds.vocabulary),
            min_p=0.01,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            repetition_penalty=1.1,
            logit_bias={0: 1.0},
            ignore_eos=True,
        )
    )
