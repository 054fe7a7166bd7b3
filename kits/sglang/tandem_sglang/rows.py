"""A step's rows in SGLang's scheduler: whose they are, at which position, and what edits them.

Of SGLang's requests only attributes are read, so nothing of SGLang is imported here. Nothing is
kept here either: a sequence's processors live on its own request object and go with it, or when it
ends (S3-090, S3-093).
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tandem.errors import ProcessorError, RequestError, TandemError
from tandem.logits.arrays import indices, like
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.rows import blank, edit_rows, error_of
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits
from tandem_sglang.requests import BIAS_KEY, MADE_KEY, SPEC_KEY, decode_bias

_REQUEST = "__req__"
_STATE = "_tandem_logits"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How a step's rows ended, to be read when its tokens are: then nobody waits for a GPU."""

    requests: Sequence[Any]
    states: Sequence[RequestLogits]
    codes: Any
    """(rows,), see `edit_rows`."""

    def tell(self, fail: Callable[[Any, TandemError], None]) -> None:
        """Calls `fail` for a request that must end with an error instead of its token."""
        for request, state, code in zip(
            self.requests, self.states, self.codes.tolist(), strict=True
        ):
            error = error_of(state, code)
            if error is not None and not request.finished():
                fail(request, error)


class RowEditor:
    """Applies specs to the rows of a step, in the scheduler process."""

    def __init__(
        self, registry: Registry, model: Model, agree: Callable[[Any], None] | None = None
    ) -> None:
        """`agree`: makes each code, (rows,) int32, the largest of all ranks, in place; None where
        there is one rank.
        """
        self._registry = registry
        self._model = model
        self._agree = agree

    def edit(self, logits: Any, params: Sequence[Mapping[str, Any]]) -> Verdicts | None:
        """Edits `logits`, (rows, vocabulary), in place: row i belongs to params[i], whose "__req__"
        is SGLang's request. None: no row can have failed. Never raises.
        """
        places: list[int] = []
        requests: list[Any] = []
        histories: list[TokenHistory] = []
        states: list[RequestLogits] = []
        for place, given in enumerate(params):
            request = given[_REQUEST]
            history = history_of(request)
            if history is None:
                continue
            places.append(place)
            states.append(getattr(request, _STATE, None) or self._made(request, given))
            requests.append(given[_REQUEST])
            histories.append(history)
        if not states:
            return None
        if len(places) == len(logits):
            codes = self._edited(states, histories, logits)
        else:
            sampled = like(logits, indices(places))
            rows = logits[sampled]
            codes = self._edited(states, histories, rows)
            logits[sampled] = rows
        return None if codes is None else Verdicts(requests, states, codes)

    def _edited(
        self, states: Sequence[RequestLogits], histories: Sequence[TokenHistory], rows: Any
    ) -> Any:
        codes = edit_rows(states, histories, rows)
        if self._agree is not None:
            if codes is None:
                codes = like(rows, numpy.zeros(len(states), dtype=numpy.int32))
            self._agree(codes)
        if codes is not None:
            blank(rows, codes)
        return codes

    def _made(self, request: Any, params: Any) -> RequestLogits:
        try:
            made = RequestLogits.create(
                self._registry,
                decode_spec(params[SPEC_KEY]),
                self._model,
                engine_grammar=getattr(request, "grammar", None) is not None,
                bias=decode_bias(params.get(BIAS_KEY)),
            )
        except (RequestError, ProcessorError) as error:
            made = RequestLogits(())
            made.error = ProcessorError(error.message)
        # SGLang's own reference makes a cycle of the request, which then lives until the garbage
        # collector comes by, and its state with it.
        params[_REQUEST] = weakref.proxy(request)
        setattr(request, _STATE, made)
        return made


def forget(request: Any) -> None:
    """Drop a request's processors, because it has ended: SGLang may keep the request itself for a
    while.
    """
    if hasattr(request, _STATE):
        delattr(request, _STATE)


def decode_spec(encoded: str) -> LogitsProcessorSpec:
    """The processors that `requests.encode_spec` wrote into a request."""
    return LogitsProcessorSpec(tuple(LogitsProcessorEntry(*each) for each in json.loads(encoded)))


def made_of(request: Any) -> int:
    """How many of its last input tokens are output, which another engine made."""
    params = request.sampling_params.custom_params
    return int(params.get(MADE_KEY, 0)) if isinstance(params, dict) else 0


def history_of(request: Any) -> TokenHistory | None:
    """What a request's processors are to see; None where what is sampled from its row now becomes
    no token: after its end, and in a middle chunk of a prefill, first or repeated, whose sample
    SGLang throws away.

    The position is not len(output_ids): under overlap scheduling that is one token behind. The
    tokens are there where they are exact: always, but for a step whose sampling did not wait for
    the result of the one before (delayed_sampling.py).
    """
    if request.to_finish is not None or request.finished():
        return None
    prompt, generated = request.origin_input_ids, request.output_ids
    position = int(request.kv.kv_committed_len) - len(prompt)
    if made := made_of(request):
        prompt, generated = prompt[:-made], [*prompt[-made:], *generated]
        position += made
    if position < len(generated):
        return None
    if position == len(generated):
        return TokenHistory(prompt, generated)
    return TokenHistory.without_tokens(prompt_length=len(prompt), position=position)
