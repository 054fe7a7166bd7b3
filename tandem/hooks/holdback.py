"""Text that a hook holds back, and the token ids that must wait with it."""

from __future__ import annotations

from collections import deque
from itertools import accumulate

from tandem.hooks.contract import Verdict, emit, suppress

MAX_TEXTLESS = 64


class _Held:
    """One chunk, or several that became one."""

    __slots__ = ("characters", "rewritten", "tokens")

    def __init__(self, characters: int, tokens: int, rewritten: bool = False) -> None:
        self.characters = characters
        self.tokens = tokens
        self.rewritten = rewritten


class Holdback:
    """One sequence's text that was not shown yet, oldest first.

    Chunks leave whole, because which characters of a chunk belong to which of its tokens is not
    known. So text and tokens stay together, also for the hooks that come later in the chain. The
    tokens of a stretch that was rewritten are never shown, nor others that leave in one verdict
    with it.

    A token without text waits for the next text, because it may be the first bytes of a character.
    Of a run of such tokens the last MAX_TEXTLESS wait; those before are dropped, so that a run is
    bounded.
    """

    __slots__ = ("_chunks", "_textless", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        """The held text, as a client would see it."""
        self.tokens = 0
        """How many tokens wait, those without text included."""
        self._chunks: deque[_Held] = deque()
        self._textless = 0

    def __bool__(self) -> bool:
        return bool(self._chunks) or self._textless > 0

    def add(self, text: str, tokens: int) -> None:
        """Add a chunk that came."""
        self.tokens += tokens
        if text:
            self.text += text
            self._chunks.append(_Held(len(text), self._textless + tokens))
            self._textless = 0
            return
        self._textless += tokens
        if self._textless > MAX_TEXTLESS:
            self._chunks.append(_Held(0, self._textless - MAX_TEXTLESS, rewritten=True))
            self._textless = MAX_TEXTLESS

    def rewrite(self, start: int, end: int, text: str) -> None:
        """Put `text` in place of `self.text[start:end]`. The tokens of the chunks it touches will
        not be shown; what is left of those chunks stays as text without tokens.
        """
        merged = _Held(len(text), 0, rewritten=True)
        before: list[_Held] = []
        after: list[_Held] = []
        place = 0
        for held in self._chunks:
            begin, place = place, place + held.characters
            if place <= start:
                before.append(held)
            elif begin >= end:
                after.append(held)
            else:
                merged.tokens += held.tokens
                if begin < start:
                    before.append(_Held(start - begin, 0))
                if place > end:
                    after.append(_Held(place - end, 0))
        self._chunks = deque([*before, merged, *after])
        self.text = self.text[:start] + text + self.text[end:]

    def borders(self) -> list[int]:
        """Where each chunk ends in `text`, in order."""
        return list(accumulate(held.characters for held in self._chunks))

    def show(self, end: int) -> Verdict:
        """Let `self.text[:end]` go, as far as it is whole chunks."""
        shown = tokens = 0
        clean = True
        chunks = self._chunks
        while chunks and shown + chunks[0].characters <= end:
            held = chunks.popleft()
            shown += held.characters
            tokens += held.tokens
            clean = clean and not held.rewritten
        text, self.text = self.text[:shown], self.text[shown:]
        self.tokens -= tokens
        if not shown and not tokens:
            return suppress(hold_tokens=self.tokens)
        return emit(text, hold_tokens=self.tokens, show_tokens=clean)

    def finish(self) -> Verdict:
        """Let everything go: the sequence is over."""
        if self._textless:
            self._chunks.append(_Held(0, self._textless))
            self._textless = 0
        return self.show(len(self.text))
