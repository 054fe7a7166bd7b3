"""Where a text may be cut so that the tokens of its parts, one after the other, are its own.

A tokenizer first looks for added tokens from left to right, the longest where several begin, and
then tokenises each text between two of them by itself. So a text may be cut before an added token
that no other added token, and no blank that one takes with it, can reach into from the left.

Source: https://github.com/huggingface/tokenizers, tokenizers/src/tokenizer/added_vocabulary.rs
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import tokenizers

_NEITHER: Final = re.compile(r"[^\w\s]")


class Seams:
    """The added tokens before which any text may be cut."""

    def __init__(self, added: Collection[tokenizers.AddedToken]) -> None:
        found = [token for token in added if not token.normalized]
        later = {token.content[at:] for token in found for at in range(1, len(token.content))}
        """How texts of tokens go on behind their first character."""
        hazards = [token.content for token in found if token.lstrip or token.single_word]
        seams = sorted(
            token.content
            for token in found
            if not _reached(token.content, later) and not _begins(token.content, hazards)
        )
        self._pattern = re.compile("|".join(map(re.escape, seams))) if seams else None

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


def _reached(text: str, later: Collection[str]) -> bool:
    """Whether a token that begins before this one can hold a part of it, or depends on it: one that
    takes blanks with it, or is one only where no word goes on.
    """
    if not _NEITHER.match(text):
        return True
    overlaps = any(text[:size] in later for size in range(1, len(text) + 1))
    return overlaps or any(rest.startswith(text) for rest in later)


def _begins(text: str, hazards: Collection[str]) -> bool:
    """Whether this text is the beginning of a token that takes blanks before itself, or that is one
    only between blanks: where such a token is found, or nearly, this one is not.
    """
    return any(hazard.startswith(text) for hazard in hazards)
