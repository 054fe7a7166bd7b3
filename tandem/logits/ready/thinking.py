"""A bound for a model's reasoning."""

from __future__ import annotations

from typing import ClassVar

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import Count, Text, TokenIds, tokens_of

_LONGEST_BEGINNING = 64
"""Tokens of an answer among which its reasoning may begin."""
_LONGEST_CHARACTER = 16
"""Tokens for which a character that the budget falls into is waited for: few have more than 4."""


class ThinkingBudget(MaskingProcessor):
    """Ends the reasoning after `budget` tokens: unless its end marker has come, the marker's tokens
    are forced one after the other from that position on. Source: budget forcing, Muennighoff et al.
    2025, arXiv:2501.19393, section 3.

    The reasoning is taken to begin with the answer, or in the prompt. Where the marker of its
    beginning is given, it begins behind that one, and an answer that does not begin with it is left
    alone. A marker of the end that the model has begun by itself is completed, not repeated. One
    does not begin within a character, which a form's grammar would not let go on otherwise.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})

    def __init__(
        self,
        budget: Count,
        end_token_ids: TokenIds | None = None,
        end_text: Text | None = None,
        begin_text: Text | None = None,
    ) -> None:
        """`end_token_ids` or `end_text`: the marker, such as "</think>". `begin_text`: the one with
        which the answer must begin, space aside, to have any reasoning."""
        self._budget = budget
        self._model: Model | None = None
        self._given, self._text = end_token_ids, end_text
        self._begin_text = "" if begin_text is None else begin_text.strip()
        self._begin: list[int] = []
        self._end: list[int] = []
        self._masks: list[Mask] = []
        self._ended_at = 0
        """Position after the marker, once it was found; it is looked for again where an engine goes
        back."""

    def prepare(self, model: Model) -> None:
        self._model = model
        self._end = tokens_of(model, self._given, self._text)
        self._begin = model.encode(self._begin_text) if self._begin_text else []
        self._masks = [Mask.of("force", [token]) for token in self._end]

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        position = input_ids.position
        if position < self._budget or 0 < self._ended_at <= position:
            return None
        generated = list(input_ids.generated)
        began = self._began(generated)
        if began is None or position - began < self._budget:
            return None
        thought = generated[began:]
        ended = _end_of(self._end, thought) or self._spelled(thought)
        self._ended_at = began + ended if ended else 0
        if ended or (len(thought) < self._budget + _LONGEST_CHARACTER and self._cut(thought)):
            return None
        return self._masks[_begun(self._end, thought)]

    def _cut(self, thought: list[int]) -> bool:
        """Whether it ends within a character."""
        assert self._model is not None
        return self._model.decode(thought[-_LONGEST_CHARACTER:]).endswith("\ufffd")

    def _began(self, generated: list[int]) -> int | None:
        """At which position the reasoning begins; None: the answer has begun with none."""
        if not self._begin:
            return 0
        assert self._model is not None
        first = generated[:_LONGEST_BEGINNING]
        behind = _end_of(self._begin, first)
        if behind and not self._model.decode(first[: behind - len(self._begin)]).strip():
            return behind
        for count in range(1, len(first) + 1):
            text = self._model.decode(first[:count]).lstrip()
            if text.startswith(self._begin_text):
                return count
            if not self._begin_text.startswith(text):
                return None
        return None

    def _spelled(self, generated: list[int]) -> int:
        """A position behind the marker, where a model wrote it in other tokens; 0: it did not. A
        form's grammar takes that for the end too, and would not let another follow.
        """
        assert self._model is not None
        spelled = self._text and self._text in self._model.decode(generated)
        return len(generated) if spelled else 0


def _end_of(marker: list[int], tokens: list[int]) -> int:
    """Where the first `marker` in `tokens` ends; 0 where there is none."""
    size = len(marker)
    for end in range(size, len(tokens) + 1):
        if tokens[end - size : end] == marker:
            return end
    return 0


def _begun(marker: list[int], tokens: list[int]) -> int:
    """How many of the marker's first tokens are the last tokens."""
    for length in range(min(len(marker) - 1, len(tokens)), 0, -1):
        if tokens[-length:] == marker[:length]:
            return length
    return 0
