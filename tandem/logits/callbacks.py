"""Named callbacks in the form that TensorRT-LLM's Executor API gives them: functions that edit
logits, one request at a time or all of a step at once.

    @callback
    def cooler(req_id, logits, token_ids, stream_ptr, client_id):
        logits /= 0.8

    @batched_callback
    def steer(req_ids, logits, token_ids, stream_ptr, client_ids):
        for each, row in zip(req_ids, logits):
            row[..., each] += 1.0

Each becomes a logits processor class, so it is registered, named, limited and failed like any
other. Its arguments are the request's id and its client's: whoever writes a request's spec gives
them, `LogitsProcessorEntry("cooler", {"request_id": 7, "client_id": 3})`.

A function that is decorated at the top of a module is found by its import path, also by an engine
whose scheduler is another process. A live one, `registry.register("mine", callback(function))`,
serves engines in this process; the others refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from tandem.logits import arrays
from tandem.logits.history import TokenHistory
from tandem.logits.processor import BaseLogitsProcessor, Need, Row

Single: TypeAlias = Callable[[int, Any, list[list[int]], int | None, int | None], Any]
"""Request id; logits, (1, 1, vocabulary); tokens of the prompt and of the answer so far, in a list
of one beam; the address of the CUDA stream to edit on, None on a CPU; client id.

It edits the logits in place, or returns others of that shape.
"""
Batched: TypeAlias = Callable[
    [list[int], list[Any], list[list[list[int]]], int | None, list[int | None]], None
]
"""The same as parallel lists, over all requests of a step that name it. It edits in place."""
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
    """The processor class that calls `function` for each request that names it."""
    return _named(Callback, function)


def batched_callback(function: Batched) -> type[BatchedCallback]:
    """The processor class that calls `function` once a step for all requests that name it."""
    return _named(BatchedCallback, function)


def _named(base: _Class, function: Callable[..., Any]) -> _Class:
    """A subclass in the function's place: what it decorates is found again by its import path."""
    name = getattr(function, "__name__", type(function).__name__)
    made: Any = type(
        name,
        (base,),
        {
            "__doc__": function.__doc__,
            "__module__": getattr(function, "__module__", None) or "builtins",
            "__qualname__": getattr(function, "__qualname__", name),
            "function": staticmethod(function),
        },
    )
    found: _Class = made
    return found
