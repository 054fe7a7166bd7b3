"""`banned_phrases`: ends the answer at a phrase, or takes it out."""

from __future__ import annotations

from pathlib import Path

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.holdback import Holdback
from tandem.hooks.sequences import Sequences
from tandem_guardrails import arguments
from tandem_guardrails.automaton import Automaton, AutomatonState
from tandem_guardrails.folding import phrase_symbols

MAX_FILE_BYTES = 16 * 2**20
MAX_SYMBOLS = 500_000
"""Symbols of all phrases together: about 120 MiB in each process, and seconds at its start."""


class _Sequence:
    __slots__ = ("begun", "chunk", "held", "state", "tokens")

    def __init__(self) -> None:
        self.state: AutomatonState | None = None
        """None: nothing came yet."""
        self.chunk = ""
        """The only chunk that waits, with its tokens; several chunks wait in `held`."""
        self.tokens = 0
        self.held: Holdback | None = None
        """None: nothing waits, or one chunk."""
        self.begun = ""
        """The end of `held` that may be the beginning of a phrase, as it came."""

    def waiting(self) -> Holdback:
        """All text that waits, in order."""
        if self.held is None:
            self.held = Holdback()
            if self.chunk:
                self.held.add(self.chunk, self.tokens)
                self.begun, self.chunk = self.chunk, ""
        return self.held


class BannedPhrases:
    """Only what may be the beginning of a phrase is held back, so other text is not delayed.

    The phrase that is complete first wins, of several the longest; what was part of it begins no
    other one. So the result does not depend on how the text came in chunks.
    """

    resumable = True

    def __init__(
        self,
        *,
        phrases: list[str] | None = None,
        file: str = "",
        action: str = "terminate",
        reason: str = "banned_phrase",
        replacement: str = "[redacted]",
        case_sensitive: bool = False,
        whole_words: bool = False,
    ) -> None:
        """`file` holds one phrase a line, in UTF-8. Raises LoadError."""
        self.action = arguments.one_of("action", action, ("terminate", "redact"))
        self.reason = arguments.text("reason", reason)
        self.replacement = arguments.text("replacement", replacement, empty=True)
        case_sensitive = arguments.flag("case_sensitive", case_sensitive)
        whole_words = arguments.flag("whole_words", whole_words)
        given = arguments.texts("phrases", phrases or [])
        if file:
            given += _lines(arguments.text("file", file))
        if not given:
            raise LoadError("phrases or file must name at least one phrase")
        read = [
            phrase_symbols(phrase, case_sensitive=case_sensitive, whole_words=whole_words)
            for phrase in given
        ]
        if not all(read):
            raise LoadError("phrases must not be empty, nor of white space alone")
        if sum(map(len, read)) > MAX_SYMBOLS:
            raise LoadError(f"phrases have more than {MAX_SYMBOLS} characters together")
        self._automaton = Automaton(read, case_sensitive=case_sensitive, whole_words=whole_words)
        self._start = self._automaton.start
        self._sequences: Sequences[_Sequence] = Sequences(_Sequence)
        self.close = self._sequences.close

    def __call__(self, chunk: Chunk) -> Verdict:
        sequence = self._sequences.of(chunk)
        text = chunk.text_diff
        state = before = self._start if sequence.state is None else sequence.state
        for character in text:
            state = state[character]
        if text and sequence.held is None and not state.hit and not chunk.is_final:
            # What nearly every call comes to: nothing waits after it, or this chunk alone.
            if not state.waiting:
                sequence.state = state
                if sequence.chunk:
                    text, sequence.chunk = sequence.chunk + text, ""
                return emit(text)
            if not sequence.chunk:
                sequence.state, sequence.chunk = state, text
                sequence.tokens = len(chunk.token_ids_diff)
                return suppress(hold_tokens=sequence.tokens)
        if chunk.aborted:
            return suppress()
        return self._judge(sequence, chunk, before)

    def _judge(self, sequence: _Sequence, chunk: Chunk, state: AutomatonState) -> Verdict:
        held = sequence.waiting()
        held.add(chunk.text_diff, len(chunk.token_ids_diff))
        text = sequence.begun + chunk.text_diff
        place = len(sequence.begun)
        while True:
            found, state = self._automaton.find(text, place, state)
            if found is None:
                # Prefill's chunk is final, but not the end of the answer.
                if chunk.is_final and chunk.phase == "decode":
                    found = self._automaton.finish(text, state)
                if found is None:
                    break
                state = self._start
            offset = len(held.text) - len(text)
            if self.action == "terminate":
                return terminate(self.reason, text=held.text[: offset + found.start])
            held.rewrite(offset + found.start, offset + found.end, self.replacement)
            text, place = text[found.end :], 0
        if chunk.is_final:
            return held.finish()
        begun, sequence.state = self._automaton.begun(text, state)
        sequence.begun = text[len(text) - begun :]
        verdict = held.show(len(held.text) - begun)
        if not held:
            sequence.held = None
        return verdict


def _lines(path: str) -> list[str]:
    try:
        with Path(path).open("rb") as given:
            raw = given.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise LoadError(f"file {path!r} is larger than {MAX_FILE_BYTES} bytes")
        lines = raw.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise LoadError(f"file {path!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"file {path!r} is not UTF-8") from error
    return [line for line in lines if line.strip()]
