"""When a sequence may end, and when it must."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from msgspec import Meta

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import MAX_TOKENS, Count, TokenId, TokenIds, ends_of

_POSITION: frozenset[Need] = frozenset({Need.POSITION, Need.VOCABULARY})
_TAIL = 16  # tokens that surely hold the last few characters
_CLOSING = "\"'”’»)]*_"


class MinNewTokens(MaskingProcessor):
    """No end before `count` tokens: until then the end tokens' logits are -inf. A worker adds the
    request's stop tokens to them, and looks for its stop strings and stop words only behind so many
    tokens: as vLLM's `min_tokens`, and its detokenizer.
    """

    needs: ClassVar[frozenset[Need]] = _POSITION

    def __init__(
        self,
        count: Count,
        eos_token_ids: TokenIds | None = None,
        stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)] | None = None,
    ) -> None:
        """`eos_token_ids`: None for the model's. `stop_token_ids`: what else ends a sequence."""
        self.count = count
        self._given, self._stops = eos_token_ids, stop_token_ids or []
        self._mask: Mask | None = None

    def prepare(self, model: Model) -> None:
        model.check(self._stops)
        self._mask = Mask.of("never", sorted({*ends_of(model, self._given), *self._stops}))

    def turns(self) -> Iterable[int]:
        return (0, self.count)

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        return self._mask if input_ids.position < self.count else None


class MaxNewTokens(MaskingProcessor):
    """The end after `count` tokens, so that the answer ends with "stop" and not with "length"."""

    needs: ClassVar[frozenset[Need]] = _POSITION

    def __init__(self, count: Count, eos_token_id: TokenId | None = None) -> None:
        """`eos_token_id`: None for the model's."""
        self._count, self._given = count, eos_token_id
        self._mask: Mask | None = None

    def prepare(self, model: Model) -> None:
        end = model.eos_token_id if self._given is None else self._given
        model.check([end])
        self._mask = Mask.of("force", [end])

    def turns(self) -> Iterable[int]:
        return (0, self._count)

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        return self._mask if input_ids.position >= self._count else None


class StopAtSentence(MaskingProcessor):
    """The end at the first sentence that ends after `after` tokens: where the text so far ends with
    one of `marks`, closing quotes and brackets aside.

    A mark is only a mark: "e.g." and "3.14" end a sentence too where they reach a token's end.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(Need)

    def __init__(
        self,
        after: Count,
        marks: Annotated[str, Meta(min_length=1, max_length=64)] = ".!?。！？",
    ) -> None:
        self._after, self._marks = after, marks
        self._model: Model | None = None
        self._mask: Mask | None = None

    def prepare(self, model: Model) -> None:
        model.decode([])  # raises where there is no tokenizer
        self._model = model
        self._mask = Mask.of("force", [model.eos_token_id])

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        if self._model is None or input_ids.position < max(self._after, 1):
            return None
        tail = self._model.decode(input_ids.generated[-_TAIL:])
        ended = tail.rstrip().rstrip(_CLOSING).endswith(tuple(self._marks))
        return self._mask if ended else None
