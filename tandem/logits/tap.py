"""Where an engine in the program's own process leaves the logits that the program asks for: those
of the model, before penalties, processors and sampling have edited them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Logits(NamedTuple):
    """The logits of one sequence, float32; None: not asked for."""

    context: Any = None
    """(prompt tokens, vocabulary): the row of each token of the prompt."""
    generation: Any = None
    """(1, generated tokens, vocabulary), for a list of one beam; of a token that is streamed (1, 1,
    vocabulary).
    """


class Tapped:
    """The logits that are kept of one request, while the request runs."""

    def __init__(self, *, context: bool, generation: bool) -> None:
        self.wants_context = context
        self.wants_generation = generation
        self.context: Any = None
        self._rows: dict[tuple[int, int], Any] = {}

    def row(self, output_index: int, position: int, row: Any) -> None:
        """The row from which a sequence's token at this position comes. It is not kept itself."""
        self._rows[output_index, position] = row.copy()

    def logits_of_token(self, output_index: int, position: int) -> Logits:
        """The logits of one token, which are not given again, and those of the prompt."""
        row = self._rows.pop((output_index, position), None)
        return Logits(self.context, None if row is None else row[None, None])

    def logits(self, output_index: int, count: int) -> Logits:
        """The logits of a sequence that has so many tokens; without rows where one is missing."""
        rows = [self._rows.pop((output_index, position), None) for position in range(count)]
        if not rows or any(row is None for row in rows):
            return Logits(self.context)
        import numpy as np  # only where an engine in this process has made rows of it

        return Logits(self.context, np.stack(rows)[None])


class LogitsTap:
    """The requests of one program whose logits are kept, by their trace ids."""

    def __init__(self) -> None:
        self._open: dict[str, Tapped] = {}

    @contextmanager
    def opened(self, trace_id: str, tapped: Tapped) -> Iterator[None]:
        """Within the block an engine finds it."""
        self._open[trace_id] = tapped
        try:
            yield
        finally:
            del self._open[trace_id]

    def of(self, trace_id: str) -> Tapped | None:
        """None: nobody asked for the logits of this request."""
        return self._open.get(trace_id)
