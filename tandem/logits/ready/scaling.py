"""Processors that scale logits."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Any, ClassVar

import numpy
from msgspec import Meta

from tandem.logits.arrays import indices, like, where
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

    def __init__(self, penalty: Annotated[float, Meta(gt=0, le=100)], prompt: bool = True) -> None:
        """`prompt`: whether the prompt's tokens count too."""
        self._penalty, self._prompt = penalty, prompt
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._seen: set[int] = set()
        self._token_ids: Any = indices(())

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        tokens = input_ids if self._prompt else input_ids.generated
        if len(tokens) < self._read:
            self._forget()
        new = set(tokens[self._read :]) - self._seen
        self._read = len(tokens)
        if new:
            self._seen |= new
            self._token_ids = numpy.concatenate((self._token_ids, indices(sorted(new))))
        seen = like(logits, self._token_ids)
        values: Any = logits[seen]
        logits[seen] = where(values > 0, values / self._penalty, values * self._penalty)


class TemperatureSchedule(BaseLogitsProcessor):
    """Divides logits by a temperature that depends on the position: linear between the points, the
    first point's before it, and the last one's after it. The request's own temperature applies
    after it, so set that to 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False

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
        logits[:] = logits[:] / self._temperature(input_ids.position)

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
