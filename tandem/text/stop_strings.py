"""Cuts a sequence's output before its first stop string, in whatever pieces it comes.

Text that may be the beginning of a stop string is held back, and the tokens it came from with it,
so that no channel ever shows more than the text does. In a model's thoughts no stop string counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tandem.text.thoughts import ThoughtMarks, Thoughts

TokenLogprob = tuple[float, Sequence[tuple[int, float]]]
"""A token's log-probability, and the most likely alternatives as (token id, log-probability)."""


class Token(NamedTuple):
    """A token that is not shown yet. `end`: characters of output up to its last one."""

    token_id: int
    extra: TokenLogprob | None
    end: int


class StopStrings:
    """The stop strings of one sequence, and what is held back for them.

    The string that is complete first wins, the one that began first among those that end together;
    so the cut does not depend on the pieces in which the text came.
    """

    def __init__(
        self, strings: Sequence[str], *, least: int = 0, thoughts: ThoughtMarks | None = None
    ) -> None:
        """`least`: a string that is complete with one of so many first tokens does not count. As in
        vLLM, one may begin there. `thoughts`: how they are known; None: there are none.
        """
        self._ignored = least
        self._strings = tuple(strings)
        self._firsts = frozenset(string[0] for string in strings)
        self._longest = max(map(len, strings))
        self._thoughts = None if thoughts is None else Thoughts(thoughts)
        self._held = ""
        self._released = 0
        self._passed = 0
        """Characters of output among which no complete string counts."""
        self._tokens: deque[Token] = deque()
        self.matched: str | None = None

    def push(self, token: Token | None, text: str) -> str:
        """Add a token's text; returns what may be shown now. After a match nothing more is to be
        pushed.

        `Token.end` is set by `token_end`. None: text without a token, the last of the sequence's.
        """
        if self._ignored > 0:
            self._passed = self.token_end(text, incomplete=False)
        if token is not None:
            self._tokens.append(token)
            self._ignored = max(0, self._ignored - 1)
        if self._thoughts is None:
            return self._content(text)
        shown = ""
        for part, thought in self._thoughts.push(text):
            shown += self._thought(part) if thought else self._content(part)
            if self.matched is not None:
                return shown
        return shown if token is not None else shown + self._content(self._thoughts.end())

    def flush(self) -> str:
        """What was held back, once it is sure that no stop string will come of it."""
        text, self._held = self._held, ""
        self._released += len(text)
        return text

    def token_end(self, text: str, *, incomplete: bool) -> int:
        """Where the token ends that brings `text` next. `incomplete`: it also began a character."""
        untold = 0 if self._thoughts is None else len(self._thoughts.held)
        return self._released + len(self._held) + untold + len(text) + incomplete

    def released_tokens(self, *, final: bool) -> list[Token]:
        """Tokens whose text was shown; `final`: all others too, unless a stop string matched."""
        tokens = self._tokens
        keep_all = final and self.matched is None
        released = []
        while tokens and (keep_all or tokens[0].end <= self._released):
            released.append(tokens.popleft())
        return released

    def _content(self, text: str) -> str:
        window = self._held + text
        if text and (found := self._first_complete(window)) is not None:
            cut, self.matched = found
            self._held = ""
        else:
            cut = self._possible_start(window)
            self._held = window[cut:]
        self._released += cut
        return window[:cut]

    def _thought(self, text: str) -> str:
        """Release text of a thought, behind any held text."""
        shown = self.flush() + text
        self._released += len(text)
        return shown

    def _first_complete(self, window: str) -> tuple[int, str] | None:
        """What was complete before this text came, among what is held back, was passed over."""
        passed = max(len(self._held), self._passed - self._released)
        best: tuple[int, int, str] | None = None
        for string in self._strings:
            start = window.find(string, max(0, passed - len(string) + 1))
            if start >= 0:
                candidate = (start + len(string), start, string)
                if best is None or candidate[:2] < best[:2]:
                    best = candidate
        return None if best is None else (best[1], best[2])

    def _possible_start(self, window: str) -> int:
        """Where the longest end of `window` begins that a stop string may begin with."""
        length = len(window)
        for start in range(max(0, length - self._longest + 1), length):
            if window[start] in self._firsts:
                tail = window[start:]
                if any(string.startswith(tail) for string in self._strings):
                    return start
        return length
