"""Real logits rows, for the requests that ask for something which acts on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tandem.engine.base import EngineRequest, Logprobs
from tandem.engine.sim.language import Language
from tandem.errors import ProcessorError
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import EVERYTHING
from tandem.logits.registry import Registry
from tandem.logits.state import RequestLogits
from tandem.v1 import common_pb2

_LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot be


class RowSampler:
    """One sequence's logit_bias, penalties, processors and logprobs.

    The token chosen is the row's highest after all of them, at any temperature: the seed has had
    its say in which token the model favours. So a processor that changes nothing changes nothing.
    """

    def __init__(
        self, request: EngineRequest, language: Language, registry: Registry, model: Model
    ) -> None:
        """Raises RequestError for a processor that is unknown or does not fit."""
        sampling = request.sampling
        self._language = language
        self._sampling = sampling
        self._prompt = request.token_ids
        self._generated: list[int] = []
        self._counts: Counter[int] = Counter()
        self._bias = dict(sampling.logit_bias)
        self._processors = None
        if request.logits is not None:
            registry.check(request.logits, available=EVERYTHING, model=model)
            self._processors = RequestLogits.create(registry, request.logits, model)

    @staticmethod
    def needed(request: EngineRequest) -> bool:
        sampling = request.sampling
        return bool(
            request.logits is not None
            or sampling.logit_bias
            or sampling.frequency_penalty
            or sampling.presence_penalty
            or sampling.repetition_penalty not in (0.0, 1.0)
            or sampling.HasField("logprobs")
        )

    def choose(self, state: int, favoured: int) -> tuple[int, Logprobs | None]:
        """The next token, which becomes part of the history.

        Raises ProcessorError.
        """
        row = self._language.row(state, favoured)
        self._penalise(row)
        for token, bias in self._bias.items():
            row[token] += bias
        if self._processors is not None:
            history = TokenHistory(self._prompt, self._generated)
            error = self._processors.apply(history, row)
            if error is not None:
                raise ProcessorError(error.message)  # not the one that the state keeps
        token = int(row.argmax())
        self.record(token)
        return token, self._logprobs(row, token)

    def record(self, token: int) -> None:
        """A token that was chosen: by `choose`, or by prefill."""
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
