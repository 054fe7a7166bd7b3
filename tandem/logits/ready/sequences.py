"""Runs of tokens that must not come."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import MAX_ITEMS, Text, TokenId

MAX_RUN = 64
"""Tokens of a run."""
_Run: TypeAlias = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_RUN)]
_HISTORY: frozenset[Need] = frozenset({Need.HISTORY, Need.VOCABULARY})


class BannedSequences(MaskingProcessor):
    """Never one of these runs of tokens in the answer: where all but its last token have just come,
    the last one's logit becomes -inf. Source: NoBadWordsLogitsProcessor of Hugging Face.

    A text is banned in its two usual tokenisations, with and without a space before it. A model can
    spell it in others: to withhold a text for certain, use an output hook. A run has a bound,
    because at each token the answer's end is compared once for each length that a run has.
    """

    needs: ClassVar[frozenset[Need]] = _HISTORY

    def __init__(
        self,
        sequences: Annotated[list[_Run], Meta(max_length=MAX_ITEMS)] | None = None,
        texts: Annotated[list[Text], Meta(max_length=MAX_ITEMS)] | None = None,
    ) -> None:
        """Lists of token ids, texts, or both."""
        if not sequences and not texts:
            raise ValueError("give sequences or texts")
        self._sequences, self._texts = sequences or [], texts or []
        self._last_of: dict[tuple[int, ...], list[int]] = {}
        self._lengths: list[int] = []

    def prepare(self, model: Model) -> None:
        for sequence in self._sequences:
            model.check(sequence)
        spelled = [model.encode(space + text) for text in self._texts for space in ("", " ")]
        if max(map(len, spelled), default=0) > MAX_RUN:
            raise ValueError(f"a text has more than {MAX_RUN} tokens")
        self._last_of = {}
        for sequence in (*self._sequences, *spelled):
            self._last_of.setdefault(tuple(sequence[:-1]), []).append(sequence[-1])
        self._lengths = sorted({len(beginning) for beginning in self._last_of})

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        generated = input_ids.generated
        banned = [
            token
            for length in self._lengths
            if length <= len(generated)
            for token in self._last_of.get(tuple(generated[len(generated) - length :]), ())
        ]
        return Mask.of("never", banned) if banned else None


class NoRepeatNgram(MaskingProcessor):
    """No run of `size` tokens comes twice, the prompt's counted: a token that would complete one
    again gets -inf. Source: Paulus et al. 2017, arXiv:1705.04304, section 2.5, as Hugging Face's
    NoRepeatNGramLogitsProcessor.
    """

    needs: ClassVar[frozenset[Need]] = _HISTORY

    def __init__(self, size: Annotated[int, Meta(ge=1, le=MAX_RUN)]) -> None:
        self._size = size
        self._read = 0
        self._followers: dict[tuple[int, ...], set[int]] = {}
        """What came after each run of size - 1 tokens, in the first `_read` tokens."""

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        if len(input_ids) < self._read:
            self._read, self._followers = 0, {}
        start = max(0, self._read - self._size + 1)
        unread = input_ids[start:]
        for end in range(self._size, len(unread) + 1):
            gram = unread[end - self._size : end]
            self._followers.setdefault(tuple(gram[:-1]), set()).add(gram[-1])
        self._read = len(input_ids)
        if self._read < self._size - 1:
            return None
        banned = self._followers.get(tuple(input_ids[self._read - self._size + 1 :]))
        return Mask.of("never", sorted(banned)) if banned else None
