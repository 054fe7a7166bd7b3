"""The three smallest output hooks. Name one on a worker: `--hook examples.hooks:UpperCase`.

A hook is built once in each worker process and sees every chunk of every sequence, so what it
remembers is kept by request_id, and forgotten in `close`. docs/hooks/writing.md is the contract.
"""

from __future__ import annotations

from tandem.hooks.contract import Chunk, Verdict, emit, terminate
from tandem.hooks.holdback import Holdback


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

    Chunks that may be the beginning of the phrase are held back with their token ids until it is
    known that they are not, so that no part of the phrase is ever shown, in any channel. The
    client's finish_reason is "stop" and its stop_reason is "phrase_guard".
    """

    def __init__(self, phrase: str = "forbidden phrase", reason: str = "phrase_guard") -> None:
        self._phrase = _fold(phrase)
        self._reason = reason
        self._held: dict[int, Holdback] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        held = self._held.setdefault(chunk.request_id, Holdback())
        held.add(chunk.text_diff, len(chunk.token_ids_diff))
        text = _fold(held.text)
        place = text.find(self._phrase)
        if place >= 0:
            return terminate(self._reason, text=held.text[:place])
        if chunk.is_final:
            return held.finish()
        return held.show(len(text) - self._possible_start(text))

    def close(self, request_id: int) -> None:
        self._held.pop(request_id, None)

    def _possible_start(self, text: str) -> int:
        """How many of the last characters may begin the phrase."""
        for size in range(min(len(self._phrase) - 1, len(text)), 0, -1):
            if self._phrase.startswith(text[-size:]):
                return size
        return 0


def _fold(text: str) -> str:
    """Lower case, character by character: a place in the result is the same place in `text`."""
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)
