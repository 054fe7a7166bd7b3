"""The text of an answer as it comes, and what is held of it until somebody knows what it is.

Its readers are generators: they yield where they need more text. What they decide depends on the
text alone, never on the pieces it came in: none decides before all that its decision takes is here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from tandem.text.json_reader import JsonReader

T = TypeVar("T")
Reader: TypeAlias = Generator[None, None, T]

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"""[^\s<>()\[\]{}"'=,|｜]*""")


class SyntaxFault(Exception):
    """The text is not what the syntax asks for."""


class AnswerEnded(Exception):
    """The answer ends where the syntax asks for more."""


class MarkerSearch:
    """Finds the first of some markers, or what may become one at the end of the text."""

    def __init__(self, marks: Collection[str]) -> None:
        longest = sorted(marks, key=len, reverse=True)
        whole = "|".join(map(re.escape, longest)) or "(?!)"
        starts = {mark[:length] for mark in marks for length in range(1, len(mark))}
        # The beginning of a longer marker goes before a whole one: it may still become that.
        parts = "|".join(map(re.escape, sorted(starts, key=len, reverse=True))) or "(?!)"
        self.first = re.compile("|".join({re.escape(mark[0]) for mark in marks}) or "(?!)")
        self._whole = re.compile(whole)
        self._any = re.compile(rf"(?:{parts})\Z|({whole})")

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int]:
        """Where the first marker begins and ends; both alike: none, or more text has to tell."""
        found = (self._whole if ended else self._any).search(text, at)
        if found is None:
            return len(text), len(text)
        if not ended and found[1] is None:
            return found.start(), found.start()
        return found.span()


@lru_cache(maxsize=512)
def marks_of(*marks: str) -> MarkerSearch:
    return MarkerSearch(marks)


class AnswerSource:
    """The text of an answer; `most_held` is how many characters of it may be held at once."""

    def __init__(self, most_held: int) -> None:
        self._most_held = most_held
        self.text = ""
        self.at = 0
        self.ended = False
        self._held: list[str] = []
        self._room = 0
        self._holds = False
        self._recorded: list[str] | None = None
        self.recorded_size = 0
        """Characters of the recording."""

    def feed(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    @property
    def spent(self) -> bool:
        return self.at == len(self.text)

    def hold(self) -> None:
        """Holds what is taken from here on."""
        self._held = []
        self._room = self._most_held
        self._holds = True

    def release(self) -> str:
        """Gives out what was held, and holds no more."""
        held = "".join(self._held)
        self._held = []
        self._holds = False
        return held

    def record(self) -> None:
        """Records what is held, and what is taken from here on."""
        self._recorded = ["".join(self._held)] if self._holds else []
        self.recorded_size = sum(map(len, self._recorded))

    def recorded(self) -> str:
        """What was recorded; records no more."""
        recorded = "".join(self._recorded or ())
        self._recorded = None
        return recorded

    def take(self, end: int) -> str:
        """Takes the text up to `end`. Raises Fault where more would be held than may be."""
        begin = self.at
        if self._holds:
            self.at = min(end, begin + self._room)
            self._held.append(self.text[begin : self.at])
            self._room -= self.at - begin
        else:
            self.at = end
        if self._recorded is not None:
            self._recorded.append(self.text[begin : self.at])
            self.recorded_size += self.at - begin
        if self.at < end:
            raise SyntaxFault
        return self.text[begin:end]

    def more(self) -> Reader[None]:
        """Waits for more text. Raises Ended where none comes."""
        if self.ended:
            raise AnswerEnded
        yield

    def peek(self) -> Reader[str]:
        """The next character that is no space."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.take(space.end())
            if not self.spent:
                return self.text[self.at]
            yield from self.more()

    def one_of(self, *options: str) -> Reader[str]:
        """Takes space and then one of the options, none of which begins another."""
        yield from self.peek()
        while True:
            for option in options:
                if self.text.startswith(option, self.at):
                    return self.take(self.at + len(option))
            rest = self.text[self.at : self.at + max(map(len, options))]
            if not any(option.startswith(rest) for option in options):
                raise SyntaxFault
            yield from self.more()

    def literal(self, text: str) -> Reader[None]:
        """Takes a text whose spaces are free."""
        for word in text.split():
            yield from self.one_of(word)

    def word(self) -> Reader[str]:
        """Takes a name, and space before it."""
        yield from self.peek()
        taken = []
        while True:
            word = _WORD.match(self.text, self.at)
            assert word is not None
            taken.append(self.take(word.end()))
            if not self.spent:
                return "".join(taken)
            yield from self.more()

    def until(self, mark: str, stop: str = "", last: str = "") -> Reader[str]:
        """Takes all up to `mark`, and `mark`; gives what is before it. Where `stop` or the end of
        the answer comes first, the text ends before the first `last` in it, or else before `stop`,
        which is not taken."""
        taken = []
        marks = marks_of(*filter(None, (mark, stop)))
        while True:
            begin, end = marks.find(self.text, self.at, ended=self.ended)
            taken.append(self.take(begin))
            if self.text[begin:end] == mark:
                self.take(end)
                return "".join(taken)
            if end > begin or (self.ended and last):
                return self._before(last, "".join(taken), whole=end > begin)
            yield from self.more()

    def _before(self, last: str, taken: str, *, whole: bool) -> str:
        """What of the text just taken is before `last`: the rest is as if it had not been taken.
        All of it if `last` is not in it and it is `whole`; else raises Ended."""
        text, found, _ = taken.partition(last) if last else (taken, "", "")
        if not found and not whole:
            raise AnswerEnded
        self._untake(taken[len(text) :])
        return text

    def _untake(self, text: str) -> None:
        """Has the text that was taken last come again."""
        self.text = text + self.text[self.at :]
        self.at = 0
        if self._holds:
            self._held = [_without_last("".join(self._held), len(text))]
            self._room += len(text)
        if self._recorded is not None:
            self._recorded = [_without_last("".join(self._recorded), len(text))]
            self.recorded_size -= len(text)

    def up_to(self, ends: str) -> Reader[str]:
        """Takes all up to the first of some characters."""
        taken = []
        marks = marks_of(*ends)
        while True:
            begin, end = marks.find(self.text, self.at, ended=self.ended)
            taken.append(self.take(begin))
            if end > begin:
                return "".join(taken)
            yield from self.more()

    def value(self) -> Reader[str]:
        """Takes a JSON value, and space before it; gives the value with its strings mended."""
        yield from self.peek()
        taken = []
        reader = JsonReader()
        while True:
            written, end = reader.mended(self.text, self.at)
            self.take(end)
            taken.append(written)
            if reader.faulty:
                raise SyntaxFault
            if reader.over:
                return "".join(taken)
            yield from self.more()


def _without_last(text: str, count: int) -> str:
    return text[: len(text) - count]
