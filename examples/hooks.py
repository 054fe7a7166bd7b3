"""Output hooks to start from. Name one on a worker: `--hook examples.hooks:UpperCase`.

A hook is built once in each worker process and sees every chunk of every sequence, so what it
remembers is kept by (request_id, output_index) and dropped on the final chunk. See docs/hooks.md
for the contract.
"""

from __future__ import annotations

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate

Key = tuple[int, int]


class UpperCase:
    """Rewrites: the client reads capitals. Token ids stay the model's."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff.upper())


class CountingHook:
    """Observes: how much passed, and how many sequences ended, by themselves or aborted. Changes
    nothing.
    """

    def __init__(self) -> None:
        self.chunks = self.characters = self.finished = self.aborted = 0

    def __call__(self, chunk: Chunk) -> Verdict:
        self.chunks += 1
        self.characters += len(chunk.text_diff)
        self.finished += chunk.is_final and not chunk.aborted
        self.aborted += chunk.is_final and chunk.aborted
        return emit(chunk.text_diff)


class PhraseGuard:
    """Stops a request when a phrase appears, even one that is spread over several chunks.

    Text that may be the beginning of the phrase is held back until it is known not to be, so that
    no part of the phrase is ever shown. The client's finish_reason is "stop" and its stop_reason is
    "phrase_guard".
    """

    phrase = "forbidden phrase"
    reason = "phrase_guard"

    def __init__(self) -> None:
        self._held: dict[Key, str] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        key = (chunk.request_id, chunk.output_index)
        text = self._held.pop(key, "") + chunk.text_diff
        if self.phrase in text.lower():
            return terminate(self.reason)
        if chunk.is_final:
            return emit(text)
        held = self._possible_start(text)
        if held:
            self._held[key] = text[len(text) - held :]
        shown = text[: len(text) - held]
        return emit(shown) if shown or not held else suppress()

    def _possible_start(self, text: str) -> int:
        """How many of the last characters may begin the phrase."""
        for size in range(min(len(self.phrase) - 1, len(text)), 0, -1):
            if self.phrase.startswith(text[-size:].lower()):
                return size
        return 0
