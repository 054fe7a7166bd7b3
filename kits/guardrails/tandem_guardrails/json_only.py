"""`json_only`: the answer is one JSON value, or ends where it stops being one."""

from __future__ import annotations

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.sequences import Sequences
from tandem.text.json_reader import JsonReader
from tandem_guardrails import arguments

REASON = "json_only"
"""A character that cannot belong to a JSON value; it is withheld."""
COMPLETE = "json_complete"
"""The value is complete, and more text came; it is withheld."""
TOO_LONG = "json_too_long"
TRUNCATED = "json_truncated"
"""The model ended, or was ended, before the value was complete."""


class _Sequence:
    __slots__ = ("characters", "reader")

    def __init__(self, objects_only: bool) -> None:
        self.reader = JsonReader(objects_only=objects_only)
        self.characters = 0


class JsonOnly:
    """White space before and inside the value passes. Nothing is held back: what was shown could
    still become JSON.
    """

    resumable = True

    def __init__(self, *, max_characters: int | None = None, objects_only: bool = False) -> None:
        """Raises LoadError."""
        self.max_characters = (
            None if max_characters is None else arguments.whole("max_characters", max_characters)
        )
        self.objects_only = arguments.flag("objects_only", objects_only)
        self._sequences: Sequences[_Sequence] = Sequences(lambda: _Sequence(self.objects_only))
        self.close = self._sequences.close

    def __call__(self, chunk: Chunk) -> Verdict:
        sequence = self._sequences.of(chunk)
        if chunk.aborted:
            return suppress()
        reader, text = sequence.reader, chunk.text_diff
        left = len(text)
        if self.max_characters is not None:
            left = min(left, self.max_characters - sequence.characters)
        read = reader.read(text[:left])
        sequence.characters += read
        if read < left:
            return terminate(COMPLETE if reader.over else REASON, text=text[:read])
        if read < len(text):
            return terminate(COMPLETE if reader.over else TOO_LONG, text=text[:read])
        # Prefill's chunk is final, but not the end of the answer.
        if chunk.is_final and chunk.phase == "decode" and not reader.complete:
            return terminate(TRUNCATED, text=text)
        return emit(text)
