"""Processors that force the tokens that must come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from tandem.logits.forms.limits import MAX_TEXT
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import MAX_TOKENS, TokenId, TokenIds, tokens_of

_POSITION: frozenset[Need] = frozenset({Need.POSITION, Need.VOCABULARY})


class ForcedSequence(MaskingProcessor):
    """Exactly these tokens, then the end of the sequence for ever (S1-043).

    The token at position p is token_ids[p]; its logit becomes 0 and every other one -inf. It keeps
    no state, so it is exact when prefill samples the first token and decode goes on in another
    process (S1-051), after a retraction and after chunked prefill (S1-052).
    """

    needs: ClassVar[frozenset[Need]] = _POSITION

    def __init__(
        self,
        token_ids: Annotated[Sequence[TokenId], Meta(max_length=MAX_TOKENS)] | None = None,
        eos_token_id: TokenId | None = None,
        text: Annotated[str, Meta(max_length=MAX_TEXT)] | None = None,
    ) -> None:
        """Give either `token_ids` or a `text`. `eos_token_id`: None for the model's own."""
        self._given, self._text, self._eos = token_ids, text, eos_token_id
        self._masks: tuple[Mask, ...] = ()

    def prepare(self, model: Model) -> None:
        token_ids = tokens_of(model, self._given, self._text)
        end = model.eos_token_id if self._eos is None else self._eos
        model.check([end])
        self._masks = tuple(Mask.of("force", [token]) for token in (*token_ids, end))

    def turns(self) -> Iterable[int]:
        return range(len(self._masks))

    def mask(self, input_ids: TokenHistory) -> Mask:
        return self._masks[min(input_ids.position, len(self._masks) - 1)]


class ForcedPrefix(MaskingProcessor):
    """Begins the answer with these tokens; what follows is the model's.

    As ForcedSequence for positions below the prefix's length, nothing after it.
    """

    needs: ClassVar[frozenset[Need]] = _POSITION

    def __init__(
        self,
        token_ids: TokenIds | None = None,
        text: Annotated[str, Meta(max_length=MAX_TEXT)] | None = None,
    ) -> None:
        """Give either `token_ids` or a `text`."""
        self._given, self._text = token_ids, text
        self._masks: tuple[Mask, ...] = ()

    def prepare(self, model: Model) -> None:
        token_ids = tokens_of(model, self._given, self._text)
        self._masks = tuple(Mask.of("force", [token]) for token in token_ids)

    def turns(self) -> Iterable[int]:
        return range(len(self._masks) + 1)

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        position = input_ids.position
        return self._masks[position] if position < len(self._masks) else None
