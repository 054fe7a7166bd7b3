"""Redaction by your own regular expressions, with the window adapter.

    hooks:
      chain:
        - path: examples.redact_pii:RedactPii
          config: {max_tokens: 32, overlap: 64}

The adapter holds text back, with its token ids, and lets go what was checked; a match is seen whole
wherever the chunks begin and end, as long as it is not longer than `overlap` characters. The token
ids of what was redacted are never shown.
"""

from __future__ import annotations

import re
from typing import Any

from tandem.hooks.window import Window, WindowHook

MARKS = {
    "[email]": re.compile(r"\b[\w.+-]{1,40}@[\w-]{1,20}(?:\.[\w-]{1,20}){1,2}\b"),
    "[card]": re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b"),
    "[phone]": re.compile(r"\+\d{1,3}(?:[ -]?\d{2,4}){2,4}\b"),
}


class RedactPii(WindowHook):
    """Puts a mark in place of e-mail addresses, card and telephone numbers."""

    def __init__(self, *, overlap: int = 96, **settings: Any) -> None:
        super().__init__(overlap=overlap, **settings)

    def check(self, window: Window) -> str:
        text = window.text
        for mark, pattern in MARKS.items():
            text = pattern.sub(mark, text)
        return text
