"""A classifier's contract: what it is given, and what it may answer. Standard library only.

A classifier is an object with a name, made once in each worker. Its `score` is awaited when an
output is complete, once for each of a request's n outputs (S4-098, S4-114), and with
`hold_back: window` also for every window of it:

    class Toxicity:
        name = "toxicity"
        blocking = True
        timeout_ms = 500

        async def score(self, ctx: ScoringContext) -> dict[str, Any]:
            score = await self._model.rate(ctx.generated_text)
            return {"block": score > 0.9, "replacement": "I can't show that.", "score": score}

`block` (any truth value) and `replacement` (text) decide where the classifier is blocking. All but
the replacement is kept as external_scores[name]: it must be what JSON can say, and short.
Where the settings generate blocked outputs again, `regenerate` beside `block` says whether this one
is (any truth value), or with which sampling parameters: `{"temperature": 0, "seed": 7}`.

With `resumable = True` it declares that it answers the same to the same output, so that a request
whose decode worker was lost may go on at another one, and its output is judged there once more.

It may also have `startup(self)` and `shutdown(self)`, plain or async: before the first call, and
after the last.

The shape is that of the post-generation classifier hook proposed for vLLM (seed 004), so that a
classifier written for it runs here.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(slots=True, frozen=True, kw_only=True)
class ScoringContext:
    """What a classifier judges. Each gets a copy of its own, so that one that writes into the
    lists and mappings changes nothing for the others (S4-117).
    """

    request_id: str
    prompt: str
    """As the model read it: with the chat template's marks, where there is a template."""
    generated_text: str
    """All text of the output so far, as the hook chain let it through (S4-118)."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the client's body that OpenAI's API does not have: those that the deployment names
    (the frontend's `extra_fields`), or a program's `Request.extra_fields`.
    """
    finish_reason: str = ""
    """`stop` or `length`; empty while the output goes on."""
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    """The token ids of `generated_text`, as the hook chain let them through."""
    output_logprobs: list[float] = field(default_factory=list)
    """The log-probability of each of `output_token_ids`, as the engine gave it. Empty, unless the
    settings say `logprobs: true`.
    """
    request_metadata: dict[str, Any] = field(default_factory=dict)
    """`metadata`: the client's own, texts by texts, as OpenAI's API has it; `trace_id`, `model`,
    `lora_adapter` (empty: the model alone), `phase`, `output_index`, `streaming`; `is_final`: the
    output is complete; `shown_chars`: so much of `generated_text` the client has already;
    `regeneration`: earlier runs of the output that were blocked; `replayed_tokens`: so many of its
    first tokens were generated, and judged, at another worker.
    """

    def for_one(self) -> ScoringContext:
        """A copy that shares nothing that can be changed."""
        return replace(
            self,
            extra_fields=json.loads(json.dumps(self.extra_fields)),  # deepcopy takes 20 times more
            prompt_token_ids=list(self.prompt_token_ids),
            output_token_ids=list(self.output_token_ids),
            output_logprobs=list(self.output_logprobs),
            request_metadata=copy.deepcopy(self.request_metadata),
        )


class ExternalClassifierHook(Protocol):
    """What a classifier must offer, as attributes or properties; the optional parts are named at
    the top of this module.
    """

    @property
    def name(self) -> str:
        """In metrics, logs and external_scores; unique in its worker."""
        ...

    @property
    def blocking(self) -> bool:
        """True: its `block` decides, and its failure blocks. False: it only annotates."""
        ...

    @property
    def timeout_ms(self) -> float:
        """For one call, the wait for its turn included."""
        ...

    async def score(self, ctx: ScoringContext) -> dict[str, Any]: ...


class ScoringError(Exception):
    """A classifier could not judge. Unlike any other exception's words, `reason` is logged and
    recorded in external_scores: one short word of lower-case letters and underscores, such as
    `unreachable`, never anything of the text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
