"""A step's rows in SGLang's scheduler: whose they are, at which position, and what edits them.

Of SGLang's requests only attributes are read, so nothing of SGLang is imported here. Nothing is
kept here either: a sequence's processors live on its own request object and go with it, or when it
ends (S3-090, S3-093).
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy

from tandem.errors import ProcessorError, RequestError, TandemError
from tandem.logits import embedding_bias
from tandem.logits.arrays import indices, like
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.rows import blank, edit_rows, error_of
from tandem.logits.spec import read_entries
from tandem.logits.state import RequestLogits
from tandem_sglang.requests import BIAS_KEY, MADE_KEY, SPEC_KEY

log = logging.getLogger(__name__)
Read = TypeVar("Read")
_REQUEST = "__req__"
_STATE = "_tandem_logits"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How a step's rows ended, to be read when its tokens are: then nobody waits for a GPU."""

    params: Sequence[Mapping[str, Any]]
    """What `RowEditor.edit` was given of each row."""
    states: Sequence[RequestLogits]
    codes: Any
    """(rows,), see `edit_rows`."""

    def tell(self, fail: Callable[[Any, TandemError], None], step: Sequence[Any] = ()) -> None:
        """Calls `fail` for a request that must end with an error instead of its token. `step`: the
        requests of the whole step, where one is found that its row does not name.
        """
        for params, state, code in zip(self.params, self.states, self.codes.tolist(), strict=True):
            if (error := error_of(state, code)) is not None:
                end = functools.partial(_end, params, step, error, fail)
                read(end, lambda _: None)


def _end(
    params: Mapping[str, Any],
    step: Sequence[Any],
    error: TandemError,
    fail: Callable[[Any, TandemError], None],
) -> None:
    request = params.get(_REQUEST)
    if request is None:
        request = next(each for each in step if each.sampling_params.custom_params is params)
    if not read(lambda: bool(request.finished()), lambda _: False):
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
        taken: list[Mapping[str, Any]] = []
        histories: list[TokenHistory] = []
        states: list[RequestLogits] = []
        for place, given in enumerate(params):
            row = read(functools.partial(self._row, given), _unreadable)
            if row is None:
                continue
            places.append(place)
            histories.append(row[0])
            states.append(row[1])
            taken.append(given)
        if not states:
            return None
        if len(places) == len(logits):
            codes = self._edited(states, histories, logits)
        else:
            sampled = like(logits, indices(places))
            rows = logits[sampled]
            codes = self._edited(states, histories, rows)
            logits[sampled] = rows
        return None if codes is None else Verdicts(taken, states, codes)

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

    def _row(self, params: Any) -> tuple[TokenHistory, RequestLogits] | None:
        """None: what is sampled of the row becomes no token."""
        request = params[_REQUEST]
        history = history_of(request)
        if history is None:
            return None
        made = getattr(request, _STATE, None)
        if made is None:
            made = read(functools.partial(self._made, request, params), _failed)
            # SGLang's own reference makes a cycle of the request, which then lives until the
            # garbage collector comes by, and its state with it. Until 0.5.23 is the oldest, whose
            # reference is a proxy.
            if type(request) is not weakref.ProxyType:
                params[_REQUEST] = weakref.proxy(request)
            setattr(request, _STATE, made)
        return history, made

    def _made(self, request: Any, params: Any) -> RequestLogits:
        return RequestLogits.create(
            self._registry,
            read_entries(params[SPEC_KEY]),
            self._model,
            engine_grammar=getattr(request, "grammar", None) is not None,
            bias=embedding_bias.read(params.get(BIAS_KEY, "")),
        )


def _failed(error: TandemError) -> RequestLogits:
    """The processors of a request that ends with the error."""
    made = RequestLogits(())
    made.error = error
    return made


def _unreadable(error: TandemError) -> tuple[TokenHistory, RequestLogits]:
    return TokenHistory.without_tokens(prompt_length=0, position=0), _failed(error)


def forget(request: Any) -> None:
    """Drop a request's processors, because it has ended: SGLang may keep the request itself for a
    while.
    """
    if hasattr(request, _STATE):
        delattr(request, _STATE)


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


def read(what: Callable[[], Read], failed: Callable[[TandemError], Read]) -> Read:
    """What `what` returns, or where that raises, what `failed` makes of the error with which its
    request is to end. SGLang's own objects are read through this alone: they change from release to
    release, and an exception in a step would end the scheduler.
    """
    try:
        return what()
    except (RequestError, ProcessorError) as error:
        return failed(ProcessorError(error.message))
    except Exception as error:  # of SGLang's objects: it would end the scheduler
        told = f"{type(error).__name__}: {error}"
        log.error("SGLang's own objects cannot be read", extra={"reason": told}, exc_info=error)
        return failed(ProcessorError(f"the engine cannot read its own request ({told})"))
