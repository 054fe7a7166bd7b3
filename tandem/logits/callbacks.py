"""Named callbacks in the form that TensorRT-LLM's Executor API gives them: functions that edit
logits, one request at a time or all of a step at once.

    @callback
    def cooler(req_id, logits, token_ids, stream_ptr):
        logits /= 0.8

    @batched_callback
    def steer(req_ids, logits, token_ids, stream_ptr, client_ids):
        for each, row in zip(req_ids, logits):
            row[..., each] += 1.0

A function may take the client's id last, or leave it out. Any other form is refused by `callback`
and `batched_callback`, before a request can name it.

Each becomes a logits processor class, so it is registered, named, limited and failed like any
other. Its arguments are the request's id and its client's: whoever writes a request's spec gives
them, `LogitsProcessorEntry("cooler", {"request_id": 7, "client_id": 3})`.

A function that is decorated at the top of a module is found by its import path, also by an engine
whose scheduler is another process. A live one, `registry.register("mine", callback(function))`,
serves engines in this process; the others refuse it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from tandem.errors import LoadError
from tandem.logits import arrays
from tandem.logits.history import TokenHistory
from tandem.logits.processor import BaseLogitsProcessor, Need, Row

Single: TypeAlias = (
    Callable[[int, Any, list[list[int]], int | None], Any]
    | Callable[[int, Any, list[list[int]], int | None, int | None], Any]
)
"""Request id; logits, (1, 1, vocabulary); tokens of the prompt and of the answer so far, in a list
of one beam; the address of the CUDA stream to edit on, None on a CPU; client id, where it takes
that.

A callback edits the logits in place, or returns others of that shape.
"""
Batched: TypeAlias = (
    Callable[[list[int], list[Any], list[list[list[int]]], int | None], None]
    | Callable[[list[int], list[Any], list[list[list[int]]], int | None, list[int | None]], None]
)
"""Parallel lists of a Single's arguments, over all requests of a step that name the callback,
which edits in place.
"""
_FORM = ("request_id", "logits", "token_ids", "stream_ptr", "client_id")
_BATCHED_FORM = ("request_ids", "logits", "token_ids", "stream_ptr", "client_ids")
_Class = TypeVar("_Class", bound="type[Callback]")


class Callback(BaseLogitsProcessor):
    """A request's use of a single callback."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})
    keeps_state: ClassVar[bool] = False
    function: ClassVar[Callable[..., Any]]

    def __init__(self, request_id: int, client_id: int | None = None) -> None:
        self.request_id, self.client_id = request_id, client_id

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        beams = logits[None, None]
        answer = self.function(
            self.request_id, beams, [list(input_ids)], arrays.stream_of(beams), self.client_id
        )
        if answer is None or answer is beams:
            return
        if tuple(answer.shape) != tuple(beams.shape):
            raise ValueError("the logits returned have another shape")
        beams[:] = answer


class BatchedCallback(Callback):
    """A request's use of a batched callback: one call a step for all of them.

    Should that call raise, the rows are restored and it is called for each request alone, so that
    only the guilty one ends.
    """

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self.apply_batch([self], [input_ids], logits[None])

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Callback], histories: Sequence[TokenHistory], logits: Any
    ) -> None:
        cls.function(
            [each.request_id for each in processors],
            [row[None, None] for row in logits],
            [[list(history)] for history in histories],
            arrays.stream_of(logits),
            [each.client_id for each in processors],
        )


def callback(function: Single) -> type[Callback]:
    """The processor class that calls `function` for each request that names it.

    Raises LoadError for a function that has none of both forms.
    """
    return _named(Callback, function, _FORM)


def batched_callback(function: Batched) -> type[BatchedCallback]:
    """The processor class that calls `function` once a step for all requests that name it.

    Raises LoadError for a function that has none of both forms.
    """
    return _named(BatchedCallback, function, _BATCHED_FORM)


def with_client_id(function: Callable[..., Any]) -> Callable[..., Any]:
    """The callback as one of five arguments. Raises LoadError for a function of another form."""
    return _in_full(function, _FORM)


def _named(base: _Class, function: Callable[..., Any], form: Sequence[str]) -> _Class:
    """A subclass in the function's place: what it decorates is found again by its import path."""
    name = _name(function)
    made: Any = type(
        name,
        (base,),
        {
            "__doc__": function.__doc__,
            "__module__": getattr(function, "__module__", None) or "builtins",
            "__qualname__": getattr(function, "__qualname__", name),
            "function": staticmethod(_in_full(function, form)),
        },
    )
    found: _Class = made
    return found


def _in_full(function: Callable[..., Any], form: Sequence[str]) -> Callable[..., Any]:
    """The function with all arguments of its form: one without the last is not given that."""
    _check_kind(function)
    signatures = _signatures(function)
    for count in (len(form), len(form) - 1):
        if all(_takes(signature, count) for signature in signatures):
            return function if count == len(form) else _without_last(function)
    short, full = (", ".join(form[:count]) for count in (-1, None))
    raise LoadError(
        f"the callback {_name(function)!r} takes {signatures[0]}: "
        f"it must take ({short}) or ({full})"
    )


def _check_kind(function: object) -> None:
    """Raises LoadError for what could be called, and would never edit a row."""
    if inspect.isclass(function):
        raise LoadError(f"the callback {_name(function)!r} is a class: give an object of it")
    if not callable(function):
        raise LoadError(f"{function!r} is no callback: it cannot be called")
    called = getattr(type(function), "__call__", None)  # noqa: B004
    if any(
        check(each)
        for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        for each in (inspect.unwrap(function), called)
    ):
        raise LoadError(f"the callback {_name(function)!r} is async: an engine's step never waits")


def _signatures(function: Callable[..., Any]) -> list[inspect.Signature]:
    """The function's own, and that of what it wraps where it passes on whatever it is given. A
    function that is not written in Python may have none.
    """
    try:
        own = inspect.signature(function, follow_wrapped=False)
        kinds = {each.kind for each in own.parameters.values()}
        passes_on = inspect.Parameter.VAR_POSITIONAL in kinds and hasattr(function, "__wrapped__")
        return [own, inspect.signature(function)] if passes_on else [own]
    except (TypeError, ValueError):
        return []


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _without_last(function: Callable[..., Any]) -> Callable[..., Any]:
    def four(*given: Any) -> Any:
        return function(*given[:-1])

    return four


def _name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
