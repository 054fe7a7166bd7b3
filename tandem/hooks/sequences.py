"""What a hook remembers of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tandem.hooks.contract import Chunk

State = TypeVar("State")


class Sequences(Generic[State]):
    """One state for each (request_id, output_index), made when it is first asked for. A hook that
    keeps nothing else takes `close` as its own.
    """

    __slots__ = ("_make", "_states")

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self._states: dict[int, dict[int, State]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._states.values()))

    def of(self, chunk: Chunk) -> State:
        """The state of the chunk's sequence; forgotten with this call if the chunk is its last."""
        outputs = self._states.get(chunk.request_id)
        if outputs is None:
            outputs = self._states[chunk.request_id] = {}
        state = outputs.get(chunk.output_index)
        if state is None:
            state = outputs[chunk.output_index] = self._make()
        if chunk.is_final:
            del outputs[chunk.output_index]
            if not outputs:
                del self._states[chunk.request_id]
        return state

    def close(self, request_id: int) -> None:
        """Forget a request, whatever is left of it."""
        self._states.pop(request_id, None)
