"""Acts on what regular expressions find in text that comes in pieces.

What is held back is what may be the beginning of a match, or a match that may go on; where a
pattern cannot be taken apart (tandem_guardrails.beginnings), the last `max_match` characters. What
is found is what one search of the whole text finds: the leftmost match, of several there the one
whose pattern comes first, and from its end on the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.holdback import Holdback
from tandem.hooks.sequences import Sequences
from tandem_guardrails.beginnings import NotUnderstoodError, beginnings
from tandem_guardrails.regex import compiled, compiled_without_empty_matches

Action = Literal["redact", "terminate"]
TOO_LONG = "pattern_too_long"
"""The stop_reason where a match, or what may become one, is longer than `max_match`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """What to look for, and what to do about it."""

    name: str
    """Becomes the stop_reason of a terminate."""
    pattern: str
    action: Action = "redact"
    replacement: str = "[redacted]"
    accept: Callable[[str], int] | None = None
    """How many characters of a match count, as by a checksum; 0: the match is none. Without
    `accept` every match counts.
    """


class _Sequence:
    __slots__ = ("before", "held", "undecided")

    def __init__(self) -> None:
        self.before = ""
        """The last character that was decided, as it came."""
        self.undecided = ""
        """Text behind `before`: the end of the held text."""
        self.held: Holdback | None = None
        """None: nothing waits."""


class PatternFilter:
    """A hook: every match is at most `max_match` characters long. Where a longer one is on, the
    answer ends with TOO_LONG, because the rest of it could not be found any more.
    """

    def __init__(self, patterns: Sequence[Pattern], *, max_match: int) -> None:
        """Raises LoadError."""
        self._max_match = max_match
        self._patterns = [
            (one, compiled_without_empty_matches(one.pattern, f"pattern {one.name!r}"))
            for one in patterns
        ]
        matches = "|".join(f"(?:{one.pattern})" for one in patterns)
        self._match = compiled(matches, "patterns")
        self._begun: Any = None
        """Finds where a match begins that is still on; None: at least `max_match` is held."""
        self._either: Any = None
        """Finds a match or its beginning, in one search."""
        try:
            begun = "|".join(beginnings(one.pattern) for one in patterns)
            self._begun = compiled(f"(?:{begun})\\z", "beginnings")
            self._either = compiled(f"{matches}|(?:{begun})\\z", "patterns and beginnings")
        except (NotUnderstoodError, LoadError):
            self._begun = None  # taken apart, it may also be too large for RE2
        self._sequences: Sequences[_Sequence] = Sequences(_Sequence)
        self.close = self._sequences.close

    def __call__(self, chunk: Chunk) -> Verdict:
        sequence = self._sequences.of(chunk)
        text = chunk.text_diff
        if text and sequence.held is None and self._begun is not None and not chunk.is_final:
            # What nearly every call comes to: nothing in it, nothing begun. Bytes save the search
            # from counting characters.
            before = sequence.before.encode()
            seen = before + text.encode()
            if self._either.search(seen, len(before)).start() == len(seen):
                sequence.before = text[-1]
                return emit(text)
        if chunk.aborted:
            return suppress()
        return self._judge(sequence, chunk)

    # --- inside ----------------------------------------------------------------------------------

    def _judge(self, sequence: _Sequence, chunk: Chunk) -> Verdict:
        held = sequence.held
        if held is None:
            held = sequence.held = Holdback()
        held.add(chunk.text_diff, len(chunk.token_ids_diff))
        text = sequence.before + sequence.undecided + chunk.text_diff
        place = len(sequence.before)
        # Prefill's chunk is final, but not the end of the answer.
        ended = chunk.is_final and chunk.phase == "decode"
        while True:
            begun = len(text) if ended else self._begin(text, place)
            found = self._next(text, place, begun)
            if found is None:
                break
            pattern, start, end = found
            offset = len(held.text) - len(text)
            if end - start > self._max_match:
                return terminate(TOO_LONG, text=held.text[: offset + start])
            if pattern.action == "terminate":
                return terminate(pattern.name, text=held.text[: offset + start])
            held.rewrite(offset + start, offset + end, pattern.replacement)
            place = end
        if len(text) - begun > self._max_match:
            return terminate(TOO_LONG, text=held.text[: len(held.text) - len(text) + begun])
        if chunk.is_final:
            return held.finish()
        sequence.before, sequence.undecided = text[max(begun - 1, 0) : begun], text[begun:]
        verdict = held.show(len(held.text) - len(sequence.undecided))
        if not held:
            sequence.held = None
        return verdict

    def _next(self, text: str, place: int, begun: int) -> tuple[Pattern, int, int] | None:
        """The next match that is certain, because nothing before `begun` is undecided."""
        while place < begun:
            leftmost = self._match.search(text, place)
            if leftmost is None or leftmost.start() >= begun:
                return None
            start = leftmost.start()
            for pattern, regex in self._patterns:
                match = regex.match(text, start)
                if match is None:
                    continue
                size = match.end() - start
                if pattern.accept is not None and size <= self._max_match:
                    size = pattern.accept(match.group())
                if size:
                    return pattern, start, start + size
            place = start + 1
        return None

    def _begin(self, text: str, place: int) -> int:
        """From where on `text` may be the beginning of a match."""
        if self._begun is None:
            return max(len(text) - self._max_match, place)
        begun: int = self._begun.search(text, place).start()
        return begun
