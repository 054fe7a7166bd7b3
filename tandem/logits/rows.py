"""Applies the processors of a step's rows. Whatever user code does wrong becomes a value."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from tandem.errors import ContradictionError, ProcessorError, TandemError
from tandem.logits import arrays, backlog
from tandem.logits.building import what_failed
from tandem.logits.history import TokenHistory
from tandem.logits.processor import leaves_token
from tandem.logits.ready.form import FormError
from tandem.usercode.call import Caller, Failed

if TYPE_CHECKING:
    from tandem.logits.state import Part, RequestLogits

log = logging.getLogger(__name__)
_NO_TOKEN = 1
_FAILED = 2
"""A processor raised, took too long or returned another row; a row may have no token left too."""


def apply_rows(
    states: Sequence[RequestLogits], histories: Sequence[TokenHistory], logits: Any
) -> list[TandemError | None]:
    """Let each sequence's processors edit its row of `logits`, (rows, vocabulary), in place. There
    is at least one row.

    Returns what went wrong, row by row. ProcessorError: a processor raised, took too long or
    returned another row, or code of a deployment left nothing that can be sampled (NaN, or every
    token forbidden). ContradictionError: the client's fields alone left nothing. Such a row is all
    zero then, safe to sample; the engine must end the sequence with the error and show nothing of
    the step. Never raises.

    Processors of one place in their specs, and of one class, are called together where that class
    has a batched form.
    """
    codes = edit_rows(states, histories, logits)
    if codes is not None:
        blank(logits, codes)
        for state, code in zip(states, codes.tolist(), strict=True):
            state.error = error_of(state, code)
    return [state.error for state in states]


def edit_rows(
    states: Sequence[RequestLogits], histories: Sequence[TokenHistory], logits: Any
) -> Any:
    """`apply_rows` without reading what came of it, for which a GPU's host would have to wait.

    Returns how each row ended, (rows,) int32 beside `logits`: 0, or how it failed (`error_of`); the
    larger counts where several processes must agree. None where all are known to be 0. The rows
    that failed are still as they are: see `blank`.
    """
    step = _Step(states, histories, logits)
    for place in range(max([len(state.parts) for state in states])):
        step.edit(place)
    step.forbid_again()
    return step.codes()


def blank(logits: Any, codes: Any) -> None:
    """Make rows that failed safe to sample: all zero."""
    if arrays.is_numpy(logits) or logits.is_cpu:  # where to ask costs less than to go through all
        for index, code in enumerate(codes.tolist()):
            if code:
                logits[index][:] = 0.0
    else:
        logits.masked_fill_(codes[:, None] != 0, 0.0)


def error_of(state: RequestLogits, code: int) -> TandemError | None:
    """Why a row ended with `code`; None where it did not fail."""
    if not code:
        return None
    if state.error is not None:
        return state.error
    names = "', '".join(part.name for part in state.parts)
    if code == _NO_TOKEN and state.clients_own:
        return _contradiction(f"'{names}' leave no token that may come next")
    if code == _NO_TOKEN:
        return _failed(names, "left no token to sample: the row's maximum is not finite")
    return _failed(names, "failed on another rank of its engine, whose log says how")


class _Step:
    """The rows of one step, while their processors edit them."""

    __slots__ = (
        "_caller",
        "_doubtful",
        "_forbidden",
        "_histories",
        "_logits",
        "_numpy",
        "_rows",
        "_states",
    )

    def __init__(
        self, states: Sequence[RequestLogits], histories: Sequence[TokenHistory], logits: Any
    ) -> None:
        self._states = states
        self._histories = histories
        self._logits = logits
        self._numpy = arrays.is_numpy(logits)
        self._rows: list[Any] = []
        """Views of the rows, made once where one is needed: each costs as much as a small edit."""
        self._doubtful = False
        """Whether a row may have no token left."""
        self._forbidden: dict[int, Any] = {}
        """Bool, (vocabulary,): what a row's grammar forbids."""
        self._caller = Caller(states[0].seconds, by_cpu_time=True, backlog=backlog.of(logits))

    def edit(self, place: int) -> None:
        """Call the processors at `place` of all rows."""
        together: dict[type, list[int]] = {}
        for index, state in enumerate(self._states):
            if state.error is not None or place >= len(state.parts):
                continue
            if place == state.grammar_ends:
                self._forbidden[index] = self._logits[index] == -math.inf
            part = state.parts[place]
            if part.keeps_state and not self._caught_up(index, part):
                continue
            if part.batched:
                together.setdefault(type(part.processor), []).append(index)
            else:
                self._alone(index, part)
        for batch in together.values():
            if len(batch) > 1 and self._together(place, batch):
                continue
            for index in batch:
                state = self._states[index]
                if state.error is None:
                    self._alone(index, state.parts[place])

    def forbid_again(self) -> None:
        """What a grammar forbids, where processors came after it. So a processor that forces such a
        token leaves none, instead of a token after which the grammar cannot go on.
        """
        for index, forbidden in self._forbidden.items():
            self._logits[index][forbidden] = -math.inf
            self._doubtful = True

    def codes(self) -> Any:
        """See `edit_rows`. One reduction over all rows sees NaN, +inf and a row without a single
        possible token. It is left out where no processor can have done such a thing.
        """
        failed = [state.error is not None for state in self._states]
        if not self._doubtful and not any(failed):
            return None
        found = self._beside(numpy.array(failed, dtype=numpy.int32) * _FAILED)
        if not self._doubtful:
            return found
        highest = self._logits.max(1) if self._numpy else self._logits.amax(1)
        unusable = ~(abs(highest) < math.inf)
        edited = [bool(state.parts) for state in self._states]
        if not all(edited):
            unusable &= self._beside(numpy.array(edited))
        return found | unusable

    def _beside(self, array: Any) -> Any:
        return arrays.like(self._logits, array)

    def _caught_up(self, index: int, part: Part) -> bool:
        """Make a processor that keeps state ready for a call at its row's position; False where it
        failed.

        It may have been called for earlier positions in another process, or for one that an engine
        repeats.
        """
        history, error = self._histories[index], None
        if part.due != history.position:
            row = self._row(index, part)
            error = self._attempt(part.name, type(part).renew, part)
            error = error or self._attempt(part.name, part.replay, history, row)
            self._states[index].error = error
        part.due = history.position + 1
        return error is None

    def _alone(self, index: int, part: Part) -> None:
        state = self._states[index]
        error = self._attempt(
            part.name, part.processor, self._histories[index], self._row(index, part)
        )
        if isinstance(error, ContradictionError) and not state.clients_own:
            error = _failed(part.name, error.message)
        state.error = error
        if not leaves_token(part.processor):
            self._doubtful = True

    def _together(self, place: int, batch: list[int]) -> bool:
        """One call for all rows of `batch`. False where it failed, every row is as it was, and
        processors that keep state are ready to be called again.
        """
        states = [self._states[index] for index in batch]
        parts = [state.parts[place] for state in states]
        cls: Any = type(parts[0].processor)
        total = getattr(cls, "batch_is_total", False)
        everything = len(batch) == len(self._states)
        places = None if everything else arrays.like(self._logits, arrays.indices(batch))
        rows = self._logits if places is None else self._logits[places]
        edited = arrays.copied(rows) if everything and not total else rows
        error = self._attempt(
            parts[0].name,
            cls.apply_batch,
            [part.processor for part in parts],
            [self._histories[index] for index in batch],
            self._as_known(parts[0], edited),
        )
        if error is None:
            if not all(leaves_token(part.processor) for part in parts):
                self._doubtful = True
            if edited is not self._logits:
                self._logits[slice(None) if places is None else places] = edited
            return True
        if edited is self._logits:  # it said that this could not happen: there is no way back
            for state in states:
                state.error = error
            return True
        for index, part in zip(batch, parts, strict=True):
            if part.keeps_state:
                self._caught_up(index, part)  # anew, because the failed call may have moved it
        return False

    def _attempt(self, name: str, function: Any, *args: Any) -> TandemError | None:
        """One call of user code. A row is its last argument."""
        answer = self._caller.call(_spread, (function, args))
        if type(answer) is Failed:
            if isinstance(answer.error, FormError):
                return _contradiction(f"'{name}': {answer.text}")
            what, place = what_failed(answer, self._caller), answer.place
            del answer  # its traceback leads to this frame, and would keep all of the step alive
            return _failed(name, what, place)
        if answer is not None and answer is not args[-1]:
            return _failed(name, "returned a value: it must edit the row in place")
        return None

    def _row(self, index: int, part: Part) -> Any:
        if not self._rows:
            self._rows = list(self._logits)
        return self._as_known(part, self._rows[index])

    def _as_known(self, part: Part, rows: Any) -> Any:
        """Rows as the processor's author knows them: a torch tensor over the same memory where the
        engine has numpy arrays and the module of the processor works with torch.
        """
        if not self._numpy:
            return rows
        module = sys.modules.get(type(part.processor).__module__)
        torch = getattr(module, "torch", None)
        return rows if torch is None else torch.from_numpy(rows)


def _spread(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, args = call
    return function(*args)


def _contradiction(what: str) -> ContradictionError:
    """The client's own: nothing for an operator to see to."""
    log.info("a request's logits processors leave no token to choose", extra={"reason": what})
    return ContradictionError(f"the request contradicts itself: {what}")


def _failed(name: str, what: str, place: str = "") -> ProcessorError:
    """Neither the exception's own text, which may quote the prompt or the output, nor the exception
    itself, whose traceback would keep the state of the whole batch alive.
    """
    log.warning(
        "logits processor failed", extra={"processor": name, "reason": f"{what} {place}".strip()}
    )
    return ProcessorError(f"logits processor '{name}' {what}")
