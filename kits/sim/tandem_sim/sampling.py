"""Real logits rows, for the requests that ask for something which acts on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tandem.engine.base import EngineRequest, Logprobs
from tandem.errors import TandemError
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import EVERYTHING
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.state import RequestLogits
from tandem.logits.tap import Tapped
from tandem.v1 import common_pb2
from tandem_sim.language import Language

_LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot be
Chosen: TypeAlias = tuple[int, Logprobs | None]
Asked: TypeAlias = "tuple[RowSampler, int, int]"
"""A sequence's sampler, its state, and the token that the model favours."""


class RowSampler:
    """One sequence's logit_bias, penalties, processors and logprobs.

    The token chosen is the row's highest after all of them, at any temperature: the seed has had
    its say in which token the model favours. So a processor that changes nothing changes nothing.
    """

    def __init__(
        self,
        request: EngineRequest,
        language: Language,
        registry: Registry,
        model: Model,
        tapped: Tapped | None = None,
    ) -> None:
        """`tapped`: who wants the model's logits.

        Raises RequestError for a processor that is unknown or does not fit.
        """
        sampling = request.sampling
        self._language = language
        self._sampling = sampling
        self._prompt = request.token_ids
        self._output_index = request.output_index
        self.tapped = tapped
        self._generated: list[int] = []
        self._counts: Counter[int] = Counter()
        bias = dict(sampling.logit_bias)
        self._biased = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self.processors: RequestLogits | None = None
        if request.logits is not None:
            registry.check(
                request.logits,
                available=EVERYTHING,
                model=model,
                max_tokens=sampling.max_tokens,
            )
        if request.logits is not None or request.embedding_bias is not None:
            self.processors = RequestLogits.create(
                registry, request.logits, model, bias=request.embedding_bias
            )

    @staticmethod
    def needed(request: EngineRequest) -> bool:
        sampling = request.sampling
        return bool(
            request.logits is not None
            or request.embedding_bias is not None
            or sampling.logit_bias
            or sampling.frequency_penalty
            or sampling.presence_penalty
            or sampling.repetition_penalty not in (0.0, 1.0)
            or sampling.HasField("logprobs")
        )

    @property
    def history(self) -> TokenHistory:
        return TokenHistory(self._prompt, self._generated)

    def row(self, state: int, favoured: int) -> Any:
        """The next token's logits as the processors are to see them, (vocabulary,) float32."""
        row = self._language.row(state, favoured)
        if self.tapped is not None and self.tapped.wants_generation:
            self.tapped.row(self._output_index, len(self._generated), row)
        self._penalise(row)
        row[self._biased] += self._bias
        return row

    def take(self, row: Any) -> Chosen:
        """The row's token, which becomes part of the history."""
        token = int(row.argmax())
        self.record(token)
        return token, self._logprobs(row, token)

    def record(self, token: int) -> None:
        """A token that was chosen: by `take`, or by prefill."""
        self._generated.append(token)
        self._counts[token] += 1

    def _penalise(self, row: Any) -> None:
        sampling: common_pb2.SamplingParams = self._sampling
        if sampling.repetition_penalty not in (0.0, 1.0):
            seen = np.array(list({*self._prompt, *self._counts}), dtype=np.int64)
            values = row[seen]
            penalty = sampling.repetition_penalty
            row[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts and (sampling.frequency_penalty or sampling.presence_penalty):
            tokens = np.array(list(self._counts), dtype=np.int64)
            counts = np.array(list(self._counts.values()), dtype=np.float32)
            row[tokens] -= counts * sampling.frequency_penalty + sampling.presence_penalty

    def _logprobs(self, row: Any, token: int) -> Logprobs | None:
        if not self._sampling.HasField("logprobs"):
            return None
        logprobs = row - row.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        np.maximum(logprobs, _LEAST_LOGPROB, out=logprobs)
        chosen = (float(logprobs[token]),)
        wanted = min(self._sampling.logprobs, self._language.vocabulary)
        if not wanted:
            return Logprobs(chosen=chosen, top=())
        best = np.argpartition(-logprobs, wanted - 1)[:wanted]
        best = best[np.argsort(-logprobs[best], kind="stable")]
        return Logprobs(chosen=chosen, top=([(int(each), float(logprobs[each])) for each in best],))


def choose(asked: Sequence[Asked]) -> list[Chosen | TandemError]:
    """The next token of each sequence of a step, or why it has none. Processors edit all their rows
    of the step together.
    """
    steered = iter(_steered([each for each in asked if each[0].processors is not None]))
    return [
        sampler.take(sampler.row(state, favoured)) if sampler.processors is None else next(steered)
        for sampler, state, favoured in asked
    ]


def _steered(asked: Sequence[Asked]) -> list[Chosen | TandemError]:
    """`choose`, for sequences that have processors."""
    if not asked:
        return []
    rows = np.stack([sampler.row(state, favoured) for sampler, state, favoured in asked])
    states = [each for sampler, _, _ in asked if (each := sampler.processors) is not None]
    errors = apply_rows(states, [sampler.history for sampler, _, _ in asked], rows)
    return [
        # Not the error that the state keeps: it would hold on to who raises it.
        sampler.take(row) if error is None else type(error)(error.message)
        for (sampler, _, _), row, error in zip(asked, rows, errors, strict=True)
    ]
