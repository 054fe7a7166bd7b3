"""A processor that allows one of several answers, and nothing else."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, ClassVar

from msgspec import Meta

from tandem.logits.forms import compiler
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.form import Form
from tandem.logits.ready.masks import Mask
from tandem.logits.ready.types import MAX_ITEMS, Text, TokenIds


class Choice(Form):
    """Exactly one of these answers, then the end: at each position only tokens that continue one of
    them keep their logits, so the model chooses greedily token by token.

    A text is generated in its one usual tokenisation.

    The answers are sorted: those that begin as the output does are neighbours, and each token
    narrows them down. Time and memory are linear in all their tokens together.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})
    kind: ClassVar[compiler.Kind] = "choice"

    def __init__(
        self,
        texts: Annotated[list[Text], Meta(max_length=MAX_ITEMS)] | None = None,
        token_ids: Annotated[list[TokenIds], Meta(max_length=MAX_ITEMS)] | None = None,
    ) -> None:
        """Texts, lists of token ids, or both."""
        if not texts and not token_ids:
            raise ValueError("give texts or token_ids")
        self._texts, self._token_ids = texts or [], token_ids or []
        self._answers: list[list[int]] = []
        """Sorted, each once and with the end."""
        self._masks: dict[tuple[int, int, int], Mask] = {}
        """For places where answers part; fewer than there are answers."""
        self._ended: Mask | None = None
        self._low = self._high = self._read = 0
        """The answers from low to below high begin with the tokens that were read."""

    @property
    def source(self) -> str:
        return json.dumps([self._texts, self._token_ids])

    def use(self, compiled: bytes, model: Model) -> None:
        self._answers = compiler.answer_lists.decode(compiled)
        self._ended = Mask.of("force", [model.eos_token_id])
        self._begin()

    def begins(self, token_ids: Sequence[int], model: Model) -> bool:
        wanted = list(token_ids)
        at = bisect_left(self._answers, wanted)
        return at < len(self._answers) and self._answers[at][: len(wanted)] == wanted

    def in_tokens(self) -> dict[str, list[list[int]]]:
        """Arguments of the same choice, which take no tokenizer to read."""
        return {"token_ids": [answer[:-1] for answer in self._answers]}

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        """What was not begun here (a processor before this one forced it) can only end."""
        generated = input_ids.generated
        if len(generated) < self._read:
            self._begin()
        for token in generated[self._read :]:
            self._narrow(token)
        low, high = self._going_on()
        return self._next(low, high) if low < high else self._ended

    def _begin(self) -> None:
        self._low, self._high, self._read = 0, len(self._answers), 0

    def _narrow(self, token: int) -> None:
        """One more token was generated."""
        low, high = self._going_on()
        at_place = itemgetter(self._read)
        self._low = bisect_left(self._answers, token, low, high, key=at_place)
        self._high = bisect_right(self._answers, token, self._low, high, key=at_place)
        self._read += 1

    def _going_on(self) -> tuple[int, int]:
        """From and to below which answers do not end here: one that does comes first."""
        low, high = self._low, self._high
        ends = low < high and len(self._answers[low]) == self._read
        return low + ends, high

    def _next(self, low: int, high: int) -> Mask:
        """The tokens that follow in the answers from `low` to below `high`."""
        place = self._read
        first, last = self._answers[low][place], self._answers[high - 1][place]
        if first == last:
            return Mask.of("only", [first])
        known = self._masks.get((place, low, high))
        if known is None:
            tokens = {answer[place] for answer in self._answers[low:high]}
            known = self._masks[place, low, high] = Mask.of("only", sorted(tokens))
        return known
