"""A request's bias on many tokens, or on the whole vocabulary: packed numbers instead of JSON."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

import numpy

from tandem.errors import InvalidRequestError
from tandem.logits.arrays import like
from tandem.logits.history import TokenHistory
from tandem.logits.processor import BaseLogitsProcessor, Need, Row
from tandem.sampling import MOST_EMBEDDING_BIAS
from tandem.v1 import common_pb2

PARAM = "embedding_bias"
"""The request field that errors name."""
_MANY = 16
"""A bias on a row's length divided by this is one on many tokens."""
_VOCABULARY: frozenset[Need] = frozenset({Need.VOCABULARY})


class EmbeddingBias(BaseLogitsProcessor):
    """logit[t] += value, for each token that the message names. Applied after all processors that
    a request names, as in TensorRT-LLM, where it follows the callbacks.
    """

    needs: ClassVar[frozenset[Need]] = _VOCABULARY
    keeps_state: ClassVar[bool] = False
    leaves_token = True

    def __init__(self, bias: common_pb2.EmbeddingBias) -> None:
        """`bias` must have passed `check`."""
        self._bias = bias
        self._moved: Any = None

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        if self._moved is None:
            self._moved = self._beside(logits)
        places, values = self._moved
        logits[places] += values

    def _beside(self, row: Any) -> Any:
        """Places and values where rows are. They serve every step: of many tokens the whole row is
        made once, which is added faster than to places.
        """
        places, values = _token_ids(self._bias).astype(numpy.int64), _values(self._bias)
        if len(values) * _MANY < len(row):
            return like(row, places), like(row, values.astype(numpy.float32))
        whole: Any = numpy.zeros(len(row), dtype=numpy.float32)
        whole[places] = values
        return slice(None), like(row, whole)


def check(bias: common_pb2.EmbeddingBias, vocabulary: int) -> None:
    """Raises InvalidRequestError for one that does not fit the model, or is none."""
    if len(bias.token_ids) != len(bias.values) or len(bias.values) % 4:
        raise _refusal("has 4 bytes for each id and 4 for each value, as many of both")
    token_ids, values = _token_ids(bias), _values(bias)
    if not len(values):
        return
    if (token_ids[1:] <= token_ids[:-1]).any():
        raise _refusal("has its token ids in ascending order, each once")
    if token_ids[-1] >= vocabulary:
        raise _refusal(f"names token {token_ids[-1]}, and the vocabulary has {vocabulary}")
    if not numpy.abs(values).max() <= MOST_EMBEDDING_BIAS:  # NaN is in no range
        most = f"{MOST_EMBEDDING_BIAS:.0f}"
        raise _refusal(f"has values from -{most} to {most}")


def write(bias: common_pb2.EmbeddingBias | None) -> str:
    """A bias as text, for an engine's own process; empty: there is none."""
    return "" if bias is None else base64.b64encode(bias.SerializeToString()).decode()


def read(text: str) -> common_pb2.EmbeddingBias | None:
    """The bias that `write` wrote, if it did."""
    return common_pb2.EmbeddingBias.FromString(base64.b64decode(text)) if text else None


def _refusal(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM} {what}", param=PARAM)


def _token_ids(bias: common_pb2.EmbeddingBias) -> Any:
    return numpy.frombuffer(bias.token_ids, dtype="<u4")


def _values(bias: common_pb2.EmbeddingBias) -> Any:
    return numpy.frombuffer(bias.values, dtype="<f4")
