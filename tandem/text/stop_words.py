"""Finds the stop word with which a sequence ends: a run of tokens, in whatever pieces it comes.

The words of a request are one automaton (Aho and Corasick 1975): a token costs about the same
whatever their number and length, and a sequence is in one of its states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class StopWordTable:
    """The stop words of a request, for all of its sequences."""

    __slots__ = ("_fallbacks", "_next", "_words")

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        """`words`: the stop words' token ids; no word may be empty."""
        self._next: list[dict[int, int]] = [{}]
        self._words: list[tuple[int, ...]] = [()]
        for word in words:
            self._add(tuple(word))
        self._fallbacks = [0] * len(self._next)
        self._link()

    @property
    def states(self) -> int:
        """At most one more than the words have tokens."""
        return len(self._next)

    def after(self, state: int, token_id: int) -> int:
        """The state that a token leads to. A sequence begins in state 0."""
        while state and token_id not in self._next[state]:
            state = self._fallbacks[state]
        return self._next[state].get(token_id, 0)

    def word(self, state: int) -> tuple[int, ...]:
        """The word that has just ended, of several the longest; empty: none has."""
        return self._words[state]

    def _add(self, word: tuple[int, ...]) -> None:
        state = 0
        for token_id in word:
            following = self._next[state].get(token_id)
            if following is None:
                following = self._next[state][token_id] = len(self._next)
                self._next.append({})
                self._words.append(())
            state = following
        self._words[state] = word

    def _link(self) -> None:
        """A state falls back to that of its longest end with which a word begins."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            for token_id, following in self._next[state].items():
                fallback = self.after(self._fallbacks[state], token_id)
                self._fallbacks[following] = fallback
                self._words[following] = self._words[following] or self._words[fallback]
                states.append(following)


class StopWords:
    """Whether one sequence has come to the end of a stop word.

    The word that ends first wins, the one that began first among those that end together. It is
    part of the output.
    """

    __slots__ = ("_ignored", "_state", "_table", "matched")

    def __init__(self, table: StopWordTable, *, least: int = 0) -> None:
        """`least`: a word that ends with one of so many first tokens does not count."""
        self._table = table
        self._ignored = least
        self._state = 0
        self.matched: tuple[int, ...] = ()

    def push(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens come up to the end of a word, which is `matched` then; 0: none
        has ended. After a match nothing more is to be pushed.
        """
        table, state = self._table, self._state
        for count, token_id in enumerate(token_ids, 1):
            state = table.after(state, token_id)
            if count > self._ignored and (word := table.word(state)):
                self.matched = word
                return count
        self._state = state
        self._ignored = max(0, self._ignored - len(token_ids))
        return 0
