"""Tells a sequence's thoughts from the rest of its text, in whatever pieces it comes.

The rules are those by which frontends take an answer apart: see
kits/answers/tandem_answers/parsing/parser.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_MOST_SPACE = 64
"""Characters of space that may stand before the first thought: more is an answer's beginning."""


class ThoughtMarks(NamedTuple):
    begin: str
    end: str
    opened: bool = False
    """The prompt ended within a thought."""
    silent: Sequence[str] = ()
    """Texts around content, which are no part of it: a thought may begin behind them."""


class Thoughts:
    """The thoughts of one sequence. One begins where nothing but space has come since the beginning
    of the output, the end of another, or a silent text; elsewhere its marker is text. Space behind
    its end belongs to it.
    """

    __slots__ = ("_fresh", "_inside", "_marked", "_marks", "_tail", "held")

    def __init__(self, marks: ThoughtMarks) -> None:
        self._marks = marks
        self._inside = marks.opened
        self._fresh = not marks.opened
        """A thought may begin here."""
        self._marked = False
        """A thought or a silent text has come, so that space is no content yet."""
        self._tail = ""
        """The last of what was told: a mark may have begun in it."""
        self.held = ""
        """What is not told yet: a thought may have begun with it."""

    def push(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of what is certain now, and whether each is a thought's."""
        rest, self.held = self.held + text, ""
        while rest:
            count, thought = self._first(rest) if self._fresh else self._up_to_mark(rest)
            if not count:
                self.held = rest
                return
            yield rest[:count], thought
            rest = rest[count:]

    def end(self) -> str:
        """What was held: at the end of the output it begins no thought."""
        rest, self.held = self.held, ""
        return rest

    def _first(self, rest: str) -> tuple[int, bool]:
        """How much of it is certain where a thought may begin, and whether that is a thought's."""
        text = rest.lstrip()
        space = len(rest) - len(text)
        if space and self._marked:
            return space, True
        marks = (self._marks.begin, *self._marks.silent)
        for mark in marks:
            if text.startswith(mark):
                self._inside, self._marked = mark == self._marks.begin, True
                self._fresh = not self._inside
                return space + len(mark), True
        if space <= _MOST_SPACE and any(mark.startswith(text) for mark in marks):
            return 0, False
        self._fresh = False
        return self._up_to_mark(rest)

    def _up_to_mark(self, rest: str) -> tuple[int, bool]:
        """Length of the next run of one kind, and whether the run is a thought."""
        inside = self._inside
        marks = (self._marks.end,) if inside else self._marks.silent
        window = self._tail + rest
        ends = [at + len(mark) for mark in marks if (at := window.find(mark)) >= 0]
        if ends:
            count = min(ends) - len(self._tail)
            self._tail, self._inside = "", False
            self._fresh = self._marked = True
            return count, inside
        longest = max(map(len, marks), default=1)
        self._tail = window[max(0, len(window) - longest + 1) :]
        return len(rest), inside
