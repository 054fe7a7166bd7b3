"""A step's rows in SGLang's scheduler: whose they are, at which position, and what edits them.

Of SGLang's requests only attributes are read, so nothing of SGLang is imported here. Nothing is
kept here either: a sequence's processors live on its own request object and go with it, or when it
ends (S3-090, S3-093).
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tandem.engine.sglang.requests import SPEC_KEY
from tandem.errors import ProcessorError, RequestError
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

_REQUEST = "__req__"
_STATE = "_tandem_logits"


class RowEditor:
    """What a scheduler process needs to apply specs."""

    def __init__(self, registry: Registry, model: Model) -> None:
        self._registry = registry
        self._model = model

    def edit(
        self,
        logits: Any,
        params: Sequence[Mapping[str, Any]],
        fail: Callable[[Any, ProcessorError], None],
    ) -> None:
        """Edits `logits`, (rows, vocabulary), in place: row i belongs to params[i], whose "__req__"
        is SGLang's request. Calls `fail` for a request that must end with an error. Never raises.
        """
        places: list[int] = []
        requests: list[Any] = []
        states: list[RequestLogits] = []
        for place, given in enumerate(params):
            request = given[_REQUEST]
            if not _is_sampled(request):
                continue
            state = self._state(request, given)
            if isinstance(state, ProcessorError):
                logits[place].zero_()
                fail(request, state)
                continue
            places.append(place)
            requests.append(request)
            states.append(state)
        if not states:
            return
        whole = len(places) == len(logits)
        rows = logits if whole else logits[places]
        errors = apply_rows(states, [history_of(request) for request in requests], rows)
        if not whole:
            logits[places] = rows
        for request, error in zip(requests, errors, strict=True):
            if error is not None:
                fail(request, error)

    def _state(self, request: Any, params: Any) -> RequestLogits | ProcessorError:
        state = getattr(request, _STATE, None)
        if state is not None:
            found: RequestLogits = state
            return found
        try:
            made = RequestLogits.create(self._registry, decode_spec(params[SPEC_KEY]), self._model)
        except (RequestError, ProcessorError) as error:
            return ProcessorError(error.message)
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
    """The inverse of `requests.encode_spec`."""
    return LogitsProcessorSpec(
        tuple(LogitsProcessorEntry(name, args) for name, args in json.loads(encoded))
    )


def position_of(request: Any) -> int:
    """How many tokens were generated. Not len(output_ids): under overlap scheduling that is one
    token behind.
    """
    return int(request.kv.kv_committed_len) - len(request.origin_input_ids)


def history_of(request: Any) -> TokenHistory:
    """With the tokens where they are exact: always, but for a step whose sampling did not wait for
    the result of the one before (late.py).
    """
    position = position_of(request)
    if len(request.output_ids) == position:
        return TokenHistory(request.origin_input_ids, request.output_ids)
    return TokenHistory.without_tokens(
        prompt_length=len(request.origin_input_ids), position=position
    )


def _is_sampled(request: Any) -> bool:
    """Whether what is sampled from the row now becomes a token: not after the end, and not in a
    middle chunk of a prefill, first or repeated, whose sample SGLang throws away.
    """
    if request.to_finish is not None or request.finished():
        return False
    return position_of(request) >= len(request.output_ids)
