"""Processors that scale logits: temperature, penalties and their like."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy
from msgspec import Meta

from tandem.logits.arrays import indices, like, number, where
from tandem.logits.history import TokenHistory
from tandem.logits.processor import BaseLogitsProcessor, Need, Row
from tandem.logits.ready.types import MAX_ITEMS, Count

_Temperature = Annotated[float, Meta(gt=0, le=100)]


class RepetitionPenalty(BaseLogitsProcessor):
    """Tokens that came before become less likely: logit / penalty where it is positive, logit *
    penalty where it is not. Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})
    keeps_state: ClassVar[bool] = False  # what it has seen is derived from the history
    batch_is_total: ClassVar[bool] = True

    def __init__(self, penalty: Annotated[float, Meta(gt=0, le=100)], prompt: bool = True) -> None:
        """`prompt`: whether the prompt's tokens count too."""
        self._penalty, self._prompt = penalty, prompt
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._seen: set[int] = set()
        self._token_ids: Any = indices(())

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self.apply_batch([self], [input_ids], logits[None])

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Self], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        seen = [each._tokens(history) for each, history in zip(processors, histories, strict=True)]
        lengths = [len(tokens) for tokens in seen]
        penalties = numpy.array([each._penalty for each in processors], dtype=numpy.float32)
        places = (
            like(logits, numpy.repeat(indices(range(len(processors))), lengths)),
            like(logits, numpy.concatenate(seen)),
        )
        penalty = like(logits, numpy.repeat(penalties, lengths))
        values: Any = logits[places]
        logits[places] = where(values > 0, values / penalty, values * penalty)

    def _tokens(self, input_ids: TokenHistory) -> Any:
        """Tokens that came before, each once; only those since the last call are read."""
        tokens = input_ids if self._prompt else input_ids.generated
        if len(tokens) < self._read:
            self._forget()
        new = set(tokens[self._read :]) - self._seen
        self._read = len(tokens)
        if new:
            self._seen |= new
            self._token_ids = numpy.concatenate((self._token_ids, indices(sorted(new))))
        return self._token_ids


class TemperatureSchedule(BaseLogitsProcessor):
    """Divides logits by a temperature that depends on the position: linear between the points, the
    first point's before it, and the last one's after it. The request's own temperature applies
    after it, so set that to 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False
    batch_is_total: ClassVar[bool] = True

    def __init__(
        self,
        points: Annotated[
            list[tuple[Count, _Temperature]], Meta(min_length=1, max_length=MAX_ITEMS)
        ],
    ) -> None:
        """`points`: [[position, temperature], ...] in rising order of position."""
        self._positions = [position for position, _ in points]
        self._temperatures = [temperature for _, temperature in points]
        if self._positions != sorted(set(self._positions)):
            raise ValueError("the points' positions must rise")

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[:] = logits[:] / number(logits, self._temperature(input_ids.position))

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Self], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        temperatures = [
            [each._temperature(history.position)]
            for each, history in zip(processors, histories, strict=True)
        ]
        logits[:] = logits[:] / like(logits, numpy.array(temperatures, dtype=numpy.float32))

    def _temperature(self, position: int) -> float:
        after = bisect_right(self._positions, position)
        if after == 0:
            return self._temperatures[0]
        if after == len(self._positions):
            return self._temperatures[-1]
        left, right = self._positions[after - 1], self._positions[after]
        share = (position - left) / (right - left)
        low, high = self._temperatures[after - 1], self._temperatures[after]
        return low + share * (high - low)
