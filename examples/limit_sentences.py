"""A hook with settings: the `config` of its entry becomes the constructor's keyword arguments.

hooks:
  chain:
    - path: examples.limit_sentences:LimitSentences
      config: {sentences: 3}
"""

from __future__ import annotations

import re

from tandem.hooks.contract import Chunk, Verdict, emit, terminate

SENTENCE_END = re.compile(r"[.!?](?=\s)")


class LimitSentences:
    """Ends an answer after so many sentences; stop_reason is "sentence_limit"."""

    def __init__(self, sentences: int = 3) -> None:
        if sentences < 1:
            raise ValueError("sentences must be at least 1")
        self._sentences = sentences
        self._seen: dict[int, tuple[int, str]] = {}
        """By request_id: sentences so far, and the last character if it may end one more."""

    def __call__(self, chunk: Chunk) -> Verdict:
        count, mark = self._seen.get(chunk.request_id, (0, ""))
        text = mark + chunk.text_diff
        for found in SENTENCE_END.finditer(text):
            count += 1
            if count == self._sentences:
                return terminate("sentence_limit", text=text[len(mark) : found.end()])
        mark = text[-1:] if text[-1:] in (".", "!", "?") else ""
        self._seen[chunk.request_id] = count, mark
        return emit(chunk.text_diff)

    def close(self, request_id: int) -> None:
        self._seen.pop(request_id, None)
