"""A hook whose verdicts are known: of a stream it shows one chunk, withholds one, and so on; the
ninth ends. An answer that is collected is shown whole.
"""

from __future__ import annotations

from collections import Counter

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate

LAST = 9


class Rationed:
    def __init__(self) -> None:
        self._chunks: Counter[int] = Counter()

    def __call__(self, chunk: Chunk) -> Verdict:
        self._chunks[chunk.request_id] += 1
        number = self._chunks[chunk.request_id]
        if not chunk.streaming:
            return emit(chunk.text_diff)
        if number == LAST:
            return terminate("rationed")
        return emit(chunk.text_diff) if number % 2 else suppress()

    def close(self, request_id: int) -> None:
        self._chunks.pop(request_id, None)
