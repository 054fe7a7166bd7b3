"""`max_output`: ends the answer exactly at a length."""

from __future__ import annotations

from typing import Protocol

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.sequences import Sequences
from tandem_guardrails import arguments

_ENDS = frozenset(".!?…")
_WIDE_ENDS = frozenset("。！？")
_CLOSERS = frozenset("\"'”’»)]}”’」』）】")


class _Counter(Protocol):
    def read(self, text: str) -> int | None:
        """Where the unit that is one too many begins; None: not in this text."""
        ...


class _Characters:
    def __init__(self, limit: int) -> None:
        self._left = limit

    def read(self, text: str) -> int | None:
        cut = self._left
        self._left -= len(text)
        return cut if self._left < 0 else None


class _Words:
    def __init__(self, limit: int) -> None:
        self._left = limit
        self._inside = False

    def read(self, text: str) -> int | None:
        for place, character in enumerate(text):
            if character.isspace():
                self._inside = False
            elif not self._inside:
                if not self._left:
                    return place
                self._left -= 1
                self._inside = True
        return None


class _Lines:
    def __init__(self, limit: int) -> None:
        self._left = limit
        self._inside = False

    def read(self, text: str) -> int | None:
        for place, character in enumerate(text):
            if not self._inside:
                if not self._left:
                    return place
                self._left -= 1
            self._inside = character != "\n"
        return None


class _Sentences:
    """A sentence ends at . ! ? … (and quotes or brackets closed after it) before white space, at
    the full-width 。！？, and at the end of a line.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._inside = False
        self._ending = False

    def read(self, text: str) -> int | None:
        for place, character in enumerate(text):
            if self._inside:
                self._go_on(character)
            elif not (character.isspace() or character in _CLOSERS):
                if not self._left:
                    return place
                self._left -= 1
                self._inside = True
                self._ending = False
                self._go_on(character)
        return None

    def _go_on(self, character: str) -> None:
        if character in _WIDE_ENDS or character == "\n" or (self._ending and character.isspace()):
            self._inside = False
        else:
            self._ending = character in _ENDS or (self._ending and character in _CLOSERS)


_COUNTERS: dict[str, type[_Characters | _Words | _Sentences | _Lines]] = {
    "characters": _Characters,
    "words": _Words,
    "sentences": _Sentences,
    "lines": _Lines,
}


class MaxOutput:
    """The answer ends before the first character of what would be one too many. White space before
    it stays. Nothing is held back.
    """

    resumable = True

    def __init__(
        self,
        *,
        characters: int | None = None,
        words: int | None = None,
        sentences: int | None = None,
        lines: int | None = None,
        reason: str = "max_output",
    ) -> None:
        """If several limits are given, the first that is reached counts. Raises LoadError."""
        given = {"characters": characters, "words": words, "sentences": sentences, "lines": lines}
        self.limits = {
            name: arguments.whole(name, limit) for name, limit in given.items() if limit is not None
        }
        if not self.limits:
            raise LoadError(f"max_output needs a limit: one of {', '.join(given)}")
        self.reason = arguments.text("reason", reason)
        self._sequences: Sequences[list[_Counter]] = Sequences(self._counters)
        self.close = self._sequences.close

    def __call__(self, chunk: Chunk) -> Verdict:
        counters = self._sequences.of(chunk)
        if chunk.aborted:
            return suppress()
        text = chunk.text_diff
        cut: int | None = None
        for counter in counters:
            found = counter.read(text)
            if found is not None and (cut is None or found < cut):
                cut = found
        return emit(text) if cut is None else terminate(self.reason, text=text[:cut])

    def _counters(self) -> list[_Counter]:
        return [_COUNTERS[name](limit) for name, limit in self.limits.items()]
