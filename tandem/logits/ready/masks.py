"""Processors that only say which tokens may come next, one row or many at a time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy

from tandem.logits.arrays import indices, is_numpy, like, number
from tandem.logits.history import TokenHistory
from tandem.logits.processor import BaseLogitsProcessor, Row

Kind: TypeAlias = Literal["force", "only", "never"]


@dataclass(slots=True, eq=False)
class Mask:
    """What one row may sample. `force`: this one token, whatever was forbidden before. `only`: none
    but these. `never`: all but these.
    """

    kind: Kind
    token_ids: Any
    """int64, numpy."""
    _moved: Any = None

    @staticmethod
    def of(kind: Kind, token_ids: Sequence[int]) -> Mask:
        return Mask(kind, indices(token_ids))

    def beside(self, row: Any) -> Any:
        """The mask's token ids where `row` is, moved once: most masks serve many steps."""
        if is_numpy(row):
            return self.token_ids
        if self._moved is None:
            self._moved = like(row, self.token_ids)
        return self._moved


class MaskingProcessor(BaseLogitsProcessor):
    """Derive from it and answer `mask`."""

    keeps_state: ClassVar[bool] = False
    batch_is_total: ClassVar[bool] = True

    @abstractmethod
    def mask(self, input_ids: TokenHistory) -> Mask | None:
        """For the next token; None leaves the row as it is."""

    def turns(self) -> Iterable[int]:
        """Positions at which another mask than before applies, of one that goes by nothing else."""
        return (0,)

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        mask = self._next_mask(input_ids)
        if mask is None:
            return
        token_ids = mask.beside(logits)
        if mask.kind == "never":
            logits[token_ids] = number(logits, -math.inf)
            return
        kept = number(logits, 0.0) if mask.kind == "force" else logits[token_ids]
        logits[:] = -math.inf
        logits[token_ids] = kept

    def _next_mask(self, input_ids: TokenHistory) -> Mask | None:
        mask = self.mask(input_ids)
        self.leaves_token = mask is None or mask.kind == "force"
        return mask

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Self], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        """One write for all rows of a kind, instead of some for each row."""
        of_kind: dict[Kind, list[tuple[int, Any]]] = {}
        for index, (processor, history) in enumerate(zip(processors, histories, strict=True)):
            mask = processor._next_mask(history)
            if mask is not None:
                of_kind.setdefault(mask.kind, []).append((index, mask.token_ids))
        for kind, masks in of_kind.items():
            _write(kind, masks, logits)


def _write(kind: Kind, masks: list[tuple[int, Any]], logits: Any) -> None:
    rows = indices([index for index, _ in masks])
    lengths = [len(token_ids) for _, token_ids in masks]
    columns = numpy.concatenate([token_ids for _, token_ids in masks])
    places = (like(logits, numpy.repeat(rows, lengths)), like(logits, columns))
    if kind == "never":
        logits[places] = number(logits, -math.inf)
        return
    kept = number(logits, 0.0) if kind == "force" else logits[places]
    if len(rows) == len(logits):
        logits[:] = -math.inf
    else:
        logits[like(logits, rows)] = number(logits, -math.inf)
    logits[places] = kept
