"""Where a text may be cut so that the tokens of its parts, one after the other, are its own.

A tokenizer first looks for added tokens from left to right, the longest where several begin, and
then tokenises each text between two of them by itself. So a text may be cut before an added token
that no other added token, and no blank that one takes with it, can reach into from the left.

Source: https://github.com/huggingface/tokenizers, tokenizers/src/tokenizer/added_vocabulary.rs
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

import tokenizers

_LONGEST: Final = 100
"""Characters of a token before which texts are cut."""
_APART: Final = "\0"
"""Stands between texts that are searched together."""
_NEITHER: Final = re.compile(r"[^\w\s]")
"""A beginning that no blank before it belongs to, and that ends the word before it."""


class Seams:
    """The added tokens before which any text may be cut."""

    def __init__(self, added: Collection[tokenizers.AddedToken]) -> None:
        """Takes time with the number of tokens, of which some models have thousands."""
        found = [token for token in added if not token.normalized]
        texts = [token.content for token in found]
        ends = {text[at:] for text in texts for at in range(1, len(text))}
        insides = _APART.join(text[1:] for text in texts)
        # Where one of these is found, or nearly, no token that is its beginning is.
        hazards = [token.content for token in found if token.lstrip or token.single_word]
        begun = {text[:size] for text in hazards for size in range(1, len(text) + 1)}

        def is_seam(text: str) -> bool:
            """Whether no token that begins before this one can hold a part of it, or looks at it,
            and no other is there in its place.
            """
            if not _NEITHER.match(text) or len(text) > _LONGEST or _APART in text:
                return False
            reached = any(text[:size] in ends for size in range(1, len(text) + 1))
            return not reached and text not in insides and text not in begun

        seams = {text for text in texts if is_seam(text)}
        self._pattern = re.compile(_any_of(seams)) if seams else None

    def cuts(self, text: str, apart: int) -> list[int]:
        """Positions in the text, the first at least `apart` characters from its start and from each
        other. They depend on nothing behind the token that each stands before.
        """
        cuts: list[int] = []
        if self._pattern is None:
            return cuts
        place = self._pattern.search(text, apart)
        while place is not None:
            cuts.append(place.start())
            place = self._pattern.search(text, place.start() + apart)
        return cuts


def _any_of(texts: Iterable[str]) -> str:
    """A regular expression for where one of the texts begins, which tries characters in turn and
    not texts: a text of nothing but their first character takes no longer with thousands of them.
    """
    rests: dict[str, list[str]] = {}
    for text in texts:
        if not text:
            return ""
        rests.setdefault(text[0], []).append(text[1:])
    ways = [re.escape(first) + _any_of(rest) for first, rest in sorted(rests.items())]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
