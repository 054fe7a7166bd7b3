"""Penalties of one sequence in vLLM's engine process, by vLLM's own arithmetic.

vLLM's V1 runner applies its penalties after custom logits processors, and counts what another
engine made as prompt. Tandem's come before them, and count it as output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from tandem.logits.arrays import like, number, where
from tandem.logits.history import TokenHistory


class Penalties:
    """How strongly that counts which a sequence holds and has put out."""

    def __init__(self, frequency: float, presence: float, repetition: float) -> None:
        self._frequency = frequency
        self._presence = presence
        self._repetition = repetition
        self._counted = 0
        """Outputs in `_counts`."""
        self._counts: Any = None
        """(vocabulary,) float32: how often each token was put out."""
        self._seen: Any = None
        """(vocabulary,) bool: which tokens the prompt and the output have."""

    @classmethod
    def of(cls, given: Sequence[float] | None) -> Penalties | None:
        """Return the penalties that `requests.steering` wrote; None: there are none."""
        return None if given is None else cls(*given)

    def apply(self, row: Any, history: TokenHistory) -> None:
        """Edits `row`, (vocabulary,), in place."""
        if self._counts is None:
            self._counts = like(row, numpy.zeros(len(row), dtype=numpy.float32))
            self._seen = like(row, numpy.zeros(len(row), dtype=numpy.bool_))
            prompt = numpy.asarray(history[: history.prompt_length], dtype=numpy.int64)
            self._seen[like(row, numpy.unique(prompt))] = True
        new = numpy.asarray(history.generated[self._counted :], dtype=numpy.int64)
        if len(new):
            tokens, times = numpy.unique(new, return_counts=True)
            places = like(row, tokens)
            self._counts[places] += like(row, times.astype(numpy.float32))
            self._seen[places] = True
            self._counted += len(new)
        if self._repetition != 1.0:
            by = number(row, self._repetition)
            row[:] = where(self._seen, where(row > 0, row / by, row * by), row)
        row -= self._frequency * self._counts
        row -= self._presence * (self._counts > 0)
