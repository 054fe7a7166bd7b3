"""Answers to try a hook on: texts that hooks look for, cut into chunks in many ways."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tandem.hooks.piece import Piece
from tandem.hooks.trial import Brought

STORY = (
    "Once upon a time, a ☃ met 👩‍👩‍👧 near the café; 日本語 too. Write to ann.lee@example.com or"
    ' call +1 415 555 0132. {"key": [1, 2, 3]} Paid with 4111 1111 1111 1111, says John Smith. The'
    " END."
)
MAX_TEXTS = 12
SECONDS = 5.0
"""For one check: a hook may be slow, to build or to call."""
_LONGEST = 200
T = TypeVar("T")
RANDOM_SPLITS = 8


def texts(hook: object, config: Mapping[str, Any], given: Sequence[str]) -> list[str]:
    """The caller's own texts, the story, and texts with what the hook seems to look for."""
    around = (f"It began well. {word} And it went on." for word in _words(hook, config))
    return list(dict.fromkeys([*given, STORY, *around]))[: MAX_TEXTS + len(given)]


def _words(hook: object, config: Mapping[str, Any]) -> Iterator[str]:
    """Strings of the config, then of the hook's own attributes: a guard's phrases, most likely."""
    attributes = {**vars(type(hook)), **getattr(hook, "__dict__", {})}
    own = [value for name, value in attributes.items() if not name.startswith("__")]
    yield from _strings([list(config.values()), own], depth=4)


def _strings(value: object, *, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if 2 <= len(value) <= _LONGEST:
            yield value
    elif depth and isinstance(value, Mapping):
        yield from _strings(list(value.values()), depth=depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _strings(item, depth=depth - 1)


def words(text: str) -> list[str]:
    """About as a tokenizer cuts it: each word with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text) or [text]


def splits(text: str) -> Iterator[tuple[str, list[str]]]:
    """`text` in chunks, each way with a name. Empty chunks are those that a detokenizer gives
    inside a character of several tokens.
    """
    yield "by words", words(text)
    yield "by characters", list(text)
    yield "in one chunk", [text]
    yield "in two chunks", [text[: len(text) // 2], text[len(text) // 2 :]]
    yield "by words, with an empty final chunk", [*words(text), ""]
    yield "by characters, each that is not ASCII over three tokens", list(_by_bytes(text))
    dice = random.Random(text)
    for number in range(RANDOM_SPLITS):
        yield f"at random ({number + 1})", list(_at_random(text, dice))


def _by_bytes(text: str) -> Iterator[str]:
    for char in text:
        yield from ("", "", char) if not char.isascii() else char


def _at_random(text: str, dice: random.Random) -> Iterator[str]:
    place = 0
    while place < len(text):
        size = dice.randint(1, 12)
        yield text[place : place + size]
        place += size


def steps(chunks: Iterable[str], *, final: bool = True) -> list[Brought]:
    """What an engine would bring: one token a chunk, numbered from 1."""
    brought = [Brought(Piece(text, (number,))) for number, text in enumerate(chunks, 1)]
    if brought:
        brought[-1].final = final
    return brought


def in_time(items: Iterable[T]) -> Iterator[T]:
    """As many samples as fit into a check's time, and at least one."""
    until = time.monotonic() + SECONDS
    for item in items:
        yield item
        if time.monotonic() > until:
            return
