"""Finds any of many phrases in text that comes in pieces: an Aho–Corasick automaton.

Source: A. Aho, M. Corasick, "Efficient string matching: an aid to bibliographic search", 1975. A
node is the longest end of the text so far that begins a phrase; that is just what must be held
back. The automaton reads symbols (tandem_guardrails.folding); a State reads characters, and is
made when a text first needs it, so that one character costs one dictionary look-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tandem_guardrails.folding import BORDER, SPACE, is_word, symbols_of

MAX_SKIPPED = 64
"""A phrase drawn out by more characters without symbols of their own is not the phrase any more."""
_MAX_TRANSITIONS = 200_000
"""How many transitions are kept (about 100 bytes each); others are computed each time."""


class AutomatonState(dict[str, "AutomatonState"]):
    """Where the automaton is after some text: character -> State."""

    __slots__ = ("automaton", "hit", "node", "waiting", "word")

    def __init__(self, automaton: Automaton, node: int, word: bool, hit: bool) -> None:
        super().__init__()
        self.automaton = automaton
        self.node = node
        self.word = word
        """The last symbol was a word character's."""
        self.hit = hit
        """A phrase may have been completed since the State was asked last; it stays set."""
        self.waiting = hit or automaton.width[node] > 0
        """Whether there is text to hold back, or a hit to look at."""

    def __missing__(self, character: str) -> AutomatonState:
        return self.automaton.transition(self, character)


@dataclass(frozen=True, slots=True)
class Found:
    """A phrase in a text: `text[start:end]`."""

    start: int
    end: int


class Automaton:
    """Finds phrases in a stream of symbols. No phrase is empty."""

    def __init__(
        self, phrases: Iterable[tuple[str, ...]], *, case_sensitive: bool, whole_words: bool
    ) -> None:
        self.case_sensitive = case_sensitive
        self.whole_words = whole_words
        self.width: list[int] = [0]
        """For each node its symbols, borders not counted."""
        self._children: list[dict[str, int]] = [{}]
        self._last: list[str] = [BORDER]
        self._ends: list[tuple[int, ...]] = [()]
        """For each node the widths of the phrases that end in it, the longest first."""
        self._fail: list[int] = [0]
        for phrase in phrases:
            self._insert(phrase)
        self._link()
        self._states: dict[tuple[int, bool], AutomatonState] = {}
        self._transitions = 0
        self._hit = AutomatonState(self, 0, False, True)
        self.start = self.state(0, False)

    def state(self, node: int, word: bool) -> AutomatonState:
        """The State of a node."""
        word = word and self.whole_words
        found = self._states.get((node, word))
        if found is None:
            found = self._states[(node, word)] = AutomatonState(self, node, word, False)
        return found

    def transition(self, state: AutomatonState, character: str) -> AutomatonState:
        """Where `character` leads, from a State that was not there yet with it."""
        if state.hit:
            return state
        node, word, ends = self._read(state.node, state.word, character)
        after = self._hit if ends else self.state(node, word)
        if self._transitions < _MAX_TRANSITIONS:
            self._transitions += 1
            state[character] = after
        return after

    def find(
        self, text: str, start: int, state: AutomatonState
    ) -> tuple[Found | None, AutomatonState]:
        """The phrase that is complete first in `text` from `start` on, of several the longest.

        `state` is the State before `start`, where `text` must hold what was held back. Returns with
        the phrase the State at its end, in which nothing is begun; else that at the text's end.
        """
        node, word = state.node, state.word
        for place in range(start, len(text)):
            before = word
            node, word, ends = self._read(node, word, text[place])
            for width, bordered in ends:
                end = place if bordered else place + 1
                found = self._reach(text, end, width)
                if found is not None:
                    return found, self.state(0, before if bordered else word)
        return None, self.state(node, word)

    def finish(self, text: str, state: AutomatonState) -> Found | None:
        """The phrase that is complete because the text ends."""
        if not state.word:
            return None
        for width in self._ends[self._step(state.node, BORDER)]:
            found = self._reach(text, len(text), width)
            if found is not None:
                return found
        return None

    def begun(self, text: str, state: AutomatonState) -> tuple[int, AutomatonState]:
        """How many of the last characters of `text` may be the beginning of a phrase, and the
        State, in which beginnings that were drawn out too much are given up.
        """
        node = state.node
        while self.width[node]:
            start = self._start(text, len(text), self.width[node])
            if start is not None:
                return len(text) - start, self.state(node, state.word)
            node = self._fail[node]
        return 0, self.state(node, state.word)

    # --- inside ----------------------------------------------------------------------------------

    def _insert(self, phrase: tuple[str, ...]) -> None:
        node = 0
        for symbol in phrase:
            child = self._children[node].get(symbol)
            if child is None:
                child = self._children[node][symbol] = len(self._children)
                self._children.append({})
                self._last.append(symbol)
                self._ends.append(())
                self._fail.append(0)
                self.width.append(self.width[node] + (symbol != BORDER))
            node = child
        self._ends[node] = (self.width[node],)

    def _link(self) -> None:
        """Give each node its failure link: the node of its longest proper end."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            fail = self._fail[node]
            self._ends[node] += self._ends[fail]
            for symbol, child in self._children[node].items():
                self._fail[child] = self._step(fail, symbol) if node else 0
                queue.append(child)

    def _step(self, node: int, symbol: str) -> int:
        if symbol == SPACE and self._last[node] == SPACE:
            return node
        while True:
            child = self._children[node].get(symbol)
            if child is not None:
                return child
            if not node:
                return 0
            node = self._fail[node]

    def _read(
        self, node: int, word: bool, character: str
    ) -> tuple[int, bool, list[tuple[int, bool]]]:
        """Node and word after a character, and the widths of the phrases that end right before it,
        at a border, or with it.
        """
        ends: list[tuple[int, bool]] = []
        symbols = symbols_of(character, self.case_sensitive)
        for place, symbol in enumerate(symbols):
            if self.whole_words and is_word(symbol) != word:
                word = not word
                node = self._step(node, BORDER)
                if not place:
                    ends = [(width, True) for width in self._ends[node]]
            node = self._step(node, symbol)
        if symbols:
            ends += [(width, False) for width in self._ends[node]]
        return node, word, ends

    def _reach(self, text: str, end: int, width: int) -> Found | None:
        start = self._start(text, end, width)
        return (
            None if start is None or not self._exact(text, start, end, width) else Found(start, end)
        )

    def _start(self, text: str, end: int, width: int) -> int | None:
        """Where the last `width` symbols before `end` begin; None: too many characters among them
        have no symbols.
        """
        place, skipped, later = end, 0, BORDER
        while width > 0:
            place -= 1
            symbols = symbols_of(text[place], self.case_sensitive)
            counted = 0
            for symbol in reversed(symbols):
                counted += not (symbol == SPACE and later == SPACE)
                later = symbol
            skipped += not counted
            if skipped > MAX_SKIPPED:
                return None
            width -= counted
        return place

    def _exact(self, text: str, start: int, end: int, width: int) -> bool:
        """Whether the phrase begins with a whole character: "sen" is not in "größen", though "ß" is
        "ss".
        """
        counted, last = 0, BORDER
        for place in range(start, end):
            for symbol in symbols_of(text[place], self.case_sensitive):
                counted += not (symbol == SPACE and last == SPACE)
                last = symbol
        return counted == width
