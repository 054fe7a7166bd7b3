"""Text as phrases are compared: the symbols of a character.

A character is compared by what is left of it after Unicode compatibility decomposition (NFKD), and,
unless case matters, full case folding: "É", "é" and "e" with a combining accent are alike, "ß" is
"ss", a full-width "Ａ" is "a". White space of any kind and length is one space. Format characters
(category Cf: soft hyphen, zero-width space, direction marks) have no symbols: they do not count.

Combining marks are taken in the order they come; the letters of other scripts that look alike
(Cyrillic "а") stay different.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

SPACE = " "
BORDER = ""
"""Stands between a word character and another one, where whole words are asked for. As text no
symbol can be empty, so no text can forge it.
"""


@lru_cache(maxsize=16384)
def symbols_of(character: str, case_sensitive: bool) -> str:
    """Each character of the result is one symbol; white space is SPACE."""
    if character.isspace():
        return SPACE
    if unicodedata.category(character) == "Cf":
        return ""
    folded = unicodedata.normalize("NFKD", character)
    if not case_sensitive:
        folded = unicodedata.normalize("NFKD", folded.casefold())
    return "".join(SPACE if symbol.isspace() else symbol for symbol in folded)


@lru_cache(maxsize=16384)
def is_word(symbol: str) -> bool:
    """Letters, digits, the underscore, and the marks that combine with them."""
    return symbol == "_" or symbol.isalnum() or unicodedata.category(symbol)[0] == "M"


def phrase_symbols(phrase: str, *, case_sensitive: bool, whole_words: bool) -> tuple[str, ...]:
    """A phrase as the automaton reads it: white space collapsed, and with borders, if asked for,
    where its words begin and end.
    """
    found: list[str] = []
    word = False
    for character in phrase.strip():
        for symbol in symbols_of(character, case_sensitive):
            if symbol == SPACE and (not found or found[-1] == SPACE):
                continue
            if whole_words and is_word(symbol) != word:
                word = not word
                found.append(BORDER)
            found.append(symbol)
    while found and found[-1] == SPACE:
        found.pop()
    if whole_words and found and word:
        found.append(BORDER)
    return tuple(found)
