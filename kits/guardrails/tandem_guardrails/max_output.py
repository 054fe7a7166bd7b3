"""`max_output`: ends the answer exactly at a length."""

from __future__ import annotations

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.sequences import Sequences
from tandem_guardrails import arguments

_ENDS = frozenset(".!?…")
_WIDE_ENDS = frozenset("。！？")
_CLOSERS = frozenset("\"'”’»)]}”’」』）】")


class _Counter:
    """Counts the units of text that comes in pieces; the units here are words."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._inside = False

    def read(self, text: str) -> int | None:
        """Where the unit that is one too many begins; None: not in this text."""
        for place, character in enumerate(text):
            if not self._inside:
                if not self._begins(character):
                    continue
                if not self._left:
                    return place
                self._left -= 1
            self._inside = not self._ends(character)
        return None

    def _begins(self, character: str) -> bool:
        return not character.isspace()

    def _ends(self, character: str) -> bool:
        """Whether a unit that has begun is over with this character."""
        return character.isspace()


class _Characters(_Counter):
    def read(self, text: str) -> int | None:
        cut = self._left
        self._left -= len(text)
        return cut if self._left < 0 else None


class _Lines(_Counter):
    def _begins(self, character: str) -> bool:
        return True

    def _ends(self, character: str) -> bool:
        return character == "\n"


class _Sentences(_Counter):
    """A sentence ends at . ! ? … (and quotes or brackets closed after it) before white space, at
    the full-width 。！？, and at the end of a line.
    """

    _ending = False

    def _begins(self, character: str) -> bool:
        self._ending = False
        return not (character.isspace() or character in _CLOSERS)

    def _ends(self, character: str) -> bool:
        if character in _WIDE_ENDS or character == "\n" or (self._ending and character.isspace()):
            return True
        self._ending = character in _ENDS or (self._ending and character in _CLOSERS)
        return False


_COUNTERS = {
    "characters": _Characters,
    "words": _Counter,
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
