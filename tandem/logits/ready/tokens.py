"""Which tokens may come, the same at every position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy
from msgspec import Meta

from tandem.logits.arrays import like
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import BaseLogitsProcessor, Need, Row
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import MAX_TOKENS, TokenIds

_VOCABULARY: frozenset[Need] = frozenset({Need.VOCABULARY})
_BIASES = Meta(min_length=1, max_length=MAX_TOKENS)


class AllowedTokens(MaskingProcessor):
    """None but these: every other logit becomes -inf."""

    needs: ClassVar[frozenset[Need]] = _VOCABULARY

    def __init__(self, token_ids: TokenIds, with_eos: bool = True) -> None:
        """`with_eos`: the model may also end the sequence."""
        self._token_ids, self._with_eos = token_ids, with_eos
        self._mask: Mask | None = None

    def prepare(self, model: Model) -> None:
        model.check(self._token_ids)
        allowed = {*self._token_ids, *(model.eos_token_ids if self._with_eos else ())}
        self._mask = Mask.of("only", sorted(allowed))

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        return self._mask


class BannedTokens(MaskingProcessor):
    """All but these: their logits become -inf."""

    needs: ClassVar[frozenset[Need]] = _VOCABULARY

    def __init__(self, token_ids: TokenIds) -> None:
        self._token_ids = token_ids
        self._mask = Mask.of("never", token_ids)

    def prepare(self, model: Model) -> None:
        model.check(self._token_ids)

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        return self._mask


class Bias(BaseLogitsProcessor):
    """logit[t] += bias[t], as OpenAI's `logit_bias`, but at its place among other processors."""

    needs: ClassVar[frozenset[Need]] = _VOCABULARY
    keeps_state: ClassVar[bool] = False
    batch_is_total: ClassVar[bool] = True
    leaves_token = True

    def __init__(
        self, bias: Annotated[dict[int, Annotated[float, Meta(ge=-1e4, le=1e4)]], _BIASES]
    ) -> None:
        """`bias`: token id to what is added."""
        self._token_ids: Any = numpy.array(list(bias), dtype=numpy.int64)
        self._values: Any = numpy.array(list(bias.values()), dtype=numpy.float32)

    def prepare(self, model: Model) -> None:
        model.check(self._token_ids.tolist())

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[like(logits, self._token_ids)] += like(logits, self._values)

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Self], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        rows: Any = numpy.repeat(
            numpy.arange(len(processors)), [len(each._token_ids) for each in processors]
        )
        columns = numpy.concatenate([each._token_ids for each in processors])
        values = numpy.concatenate([each._values for each in processors])
        logits[like(logits, rows), like(logits, columns)] += like(logits, values)
