"""A processor that allows one of several answers, and nothing else."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import MAX_ITEMS, Text, TokenIds


class Choice(MaskingProcessor):
    """Exactly one of these answers, then the end: at each position only tokens that continue one of
    them keep their logits (a trie over their tokens), so the model chooses greedily token by token.

    A text is generated in its one usual tokenisation.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})

    def __init__(
        self,
        texts: Annotated[list[Text], Meta(max_length=MAX_ITEMS)] | None = None,
        token_ids: Annotated[list[TokenIds], Meta(max_length=MAX_ITEMS)] | None = None,
    ) -> None:
        """Texts, lists of token ids, or both."""
        if not texts and not token_ids:
            raise ValueError("give texts or token_ids")
        self._texts, self._token_ids = texts or [], token_ids or []
        self._next: dict[tuple[int, ...], Mask] = {}
        self._ended: Mask | None = None

    def prepare(self, model: Model) -> None:
        for token_ids in self._token_ids:
            model.check(token_ids)
        end = model.eos_token_id
        continuations: dict[tuple[int, ...], set[int]] = {}
        for answer in (*map(model.encode, self._texts), *self._token_ids):
            for length, token in enumerate((*answer, end)):
                continuations.setdefault(tuple(answer[:length]), set()).add(token)
        self._next = {
            beginning: Mask.of("only", sorted(tokens))
            for beginning, tokens in continuations.items()
        }
        self._ended = Mask.of("force", [end])

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        """What was not begun here (a processor before this one forced it) can only end."""
        return self._next.get(tuple(input_ids.generated), self._ended)
