"""How the window adapter cuts an answer: what is asked, when, and what may go afterwards.

Without the call of `check` itself, so that it can be a plain or an async one (tandem.hooks.window).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Phase, Verdict, suppress, terminate
from tandem.hooks.holdback import Holdback
from tandem.hooks.sequences import Sequences

Flush = Literal["sentence", "size", "final"]
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]{0,3}\s|[。！？\n]")
_LONGEST_END = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The text that `check` looks at."""

    text: str
    """Not shown yet, and as it came."""
    before: str
    """Up to `overlap` characters that came before it, as they came: for context; they are gone."""
    is_final: bool
    """The answer ends with it. Never so in prefill, which sees the first token alone."""
    phase: Phase
    trace_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Block:
    """An answer of `check`: end the request, and withhold the window."""

    reason: str
    text: str = ""
    """Shown in its place, as the answer's last."""


Answer = str | Block | None
"""What `check` answers: None, the window passes; a text, which takes its place; or a Block."""


class _Sequence:
    __slots__ = ("before", "characters", "held", "searched", "tokens")

    def __init__(self) -> None:
        self.held = Holdback()
        """The held text, unchanged."""
        self.before = ""
        self.tokens = self.characters = 0
        """New since the last check."""
        self.searched = 0
        """No sentence ends in so many characters of what waits."""


def _inside_a_word(text: str, place: int) -> bool:
    """Whether a cut there could hide from a check what it looks for: `\\b` in most patterns."""
    around = text[place - 1 : place + 1] if place else ""
    return len(around) == 2 and all(one == "_" or one.isalnum() for one in around)


class Windows:
    """The windows of all sequences of one hook. Raises LoadError for settings out of range."""

    def __init__(self, *, max_tokens: int, overlap: int, flush: Flush, max_characters: int) -> None:
        for name, value, least in (
            ("max_tokens", max_tokens, 1),
            ("overlap", overlap, 0),
            ("max_characters", max_characters, 1),
        ):
            if type(value) is not int or value < least:
                raise LoadError(f"{name} must be a whole number from {least} up, not {value!r}")
        if flush not in ("sentence", "size", "final"):
            raise LoadError(f"flush must be sentence, size or final, not {flush!r}")
        self._max_tokens = max_tokens
        self._overlap = overlap
        self._flush = flush
        self._max_characters = max_characters
        self.sequences: Sequences[_Sequence] = Sequences(_Sequence)

    def judge(self, chunk: Chunk) -> Generator[Window, object, Verdict]:
        """Yields what must be checked, is sent the answers, and returns the verdict."""
        sequence = self.sequences.of(chunk)
        if chunk.aborted:
            return suppress()
        held = sequence.held
        held.add(chunk.text_diff, len(chunk.token_ids_diff))
        sequence.tokens += len(chunk.token_ids_diff)
        sequence.characters += len(chunk.text_diff)
        text = held.text
        end = len(text) if chunk.is_final else self._due(sequence)
        if end:
            answer = yield self._window(chunk, text, sequence.before)
            sequence.tokens = sequence.characters = sequence.searched = 0
            if isinstance(answer, Block):
                return terminate(answer.reason, text=answer.text)
            if answer is not None and not isinstance(answer, str):
                kind = type(answer).__name__
                raise TypeError(f"check answered {kind}, not a text, a Block or None")
            cut = end  # in the text as it came; `end` is where that is in what is shown
            if answer is not None and answer != text:
                if not chunk.is_final:
                    cut, answer = yield from self._split(chunk, sequence, answer, end)
                if answer == text[:cut]:
                    cut = end = self._last_border(held, cut)
                else:
                    held.rewrite(0, cut, answer)
                    end = len(answer)
            before = sequence.before + text[:cut]
            sequence.before = before[max(len(before) - self._overlap, 0) :]
        return held.finish() if chunk.is_final else held.show(end)

    def _due(self, sequence: _Sequence) -> int:
        """Up to where the held text may go now, if `check` lets it: the end of a chunk. 0: it is
        not time to ask.
        """
        held = sequence.held
        end = len(held.text) - self._overlap
        if end <= 0:
            return 0
        if sequence.tokens >= self._max_tokens or sequence.characters >= self._max_characters:
            return self._last_border(held, end)
        if self._flush == "sentence":
            return self._sentences(sequence, end)
        return 0

    def _last_border(self, held: Holdback, end: int) -> int:
        """The last end of a chunk at or before `end`, between words; inside one only where there is
        no other for longer than the overlap. 0: none.
        """
        borders = [border for border in held.borders() if border <= end]
        between = [border for border in borders if not _inside_a_word(held.text, border)]
        return max(between or (borders if end > self._overlap else ()), default=0)

    def _sentences(self, sequence: _Sequence, end: int) -> int:
        """The end of the chunk that the last sentence before `end` ends in, or of a later one."""
        held = sequence.held
        if _SENTENCE_END.search(held.text, sequence.searched, end) is None:
            sequence.searched = max(end - _LONGEST_END, 0)
            return 0
        borders = [border for border in held.borders() if border <= end]
        ends = [found.end() for found in _SENTENCE_END.finditer(held.text, 0, end)]
        for sentence_end in reversed(ends):
            for border in borders:
                if border >= sentence_end and not _inside_a_word(held.text, border):
                    return border
        return 0

    def _split(
        self, chunk: Chunk, sequence: _Sequence, rewritten: str, end: int
    ) -> Generator[Window, object, tuple[int, str]]:
        """Where a rewritten window can be cut, at `end` or at most the overlap before it, and the
        text of its first part. Rewriting the parts one by one must give the same as rewriting the
        whole: then nothing that `check` found lies across the cut.
        """
        text = sequence.held.text
        first = max(end - self._overlap, 0)
        cuts = sorted(range(end, first - 1, -1), key=lambda cut: _inside_a_word(text, cut))
        for cut in cuts:
            if not cut:
                continue
            head = yield from self._text(chunk, text[:cut], sequence.before)
            if not rewritten.startswith(head):
                continue
            tail = yield from self._text(chunk, text[cut:], sequence.before + text[:cut])
            if head + tail == rewritten:
                return cut, head
        if not first:
            return 0, ""  # it begins the window: wait until it lies before the overlap
        # What it found is longer than the overlap: it goes as a whole.
        return len(text), rewritten

    def _text(self, chunk: Chunk, text: str, before: str) -> Generator[Window, object, str]:
        answer = yield self._window(chunk, text, before)
        return answer if isinstance(answer, str) else text

    def _window(self, chunk: Chunk, text: str, before: str) -> Window:
        return Window(
            text=text,
            before=before[max(len(before) - self._overlap, 0) :],
            is_final=chunk.is_final and chunk.phase == "decode",
            phase=chunk.phase,
            trace_id=chunk.trace_id,
            model=chunk.model,
        )
