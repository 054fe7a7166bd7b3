"""A reader of JSON that takes its text in pieces, and says where the value ends or is none."""

from __future__ import annotations

import json
import re

LONGEST_SCALAR = 1000
"""Characters of a number: one is read again with each piece that adds to it."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PART_OF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_VALID_SCALAR = re.compile(f"true|false|null|{_NUMBER}")

_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _NEXT = range(6)


class JsonReader:
    """Reads one value, strictly by RFC 8259. A value is over where its last character has come; a
    number's, where another character follows it."""

    def __init__(self) -> None:
        self.done = False
        self.faulty = False
        self._closing: list[str] = []
        self._expects = _VALUE
        self._in_string = False

    def read(self, text: str, at: int) -> int:
        """Reads `text` from `at` on, and returns where it stopped: behind the value (`done`), at
        what cannot be part of it (`faulty`), or where more text is needed. What was not read has to
        come again then, with more behind it."""
        while at < len(text) and not self.done:
            before = at
            at = self._string(text, at) if self._in_string else self._token(text, at)
            if at == before:
                break
        return at

    def mended(self, text: str, at: int) -> tuple[str, int]:
        """Reads like `read`, and gives what was read as valid JSON too: in strings, a control
        character and a backslash that begins no escape are escaped."""
        written = []
        while True:
            end = self.read(text, at)
            written.append(text[at:end])
            if not self.faulty or not self._in_string:
                return "".join(written), end
            written.append(json.dumps(text[end])[1:-1])
            self.faulty = False
            at = end + 1

    def _string(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        assert plain is not None
        at = plain.end()
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = False
            if self._expects != _COLON:
                self._end_value()
            return at + 1
        if escape := _ESCAPE.match(text, at):
            return escape.end()
        self.faulty = not _PART_OF_ESCAPE.match(text, at)
        return at

    def _token(self, text: str, at: int) -> int:
        space = _SPACE.match(text, at)
        assert space is not None
        if space.end() > at:
            return space.end()
        char, expects = text[at], self._expects
        if char == '"' and expects not in (_COLON, _NEXT):
            self._in_string = True
            self._expects = _COLON if expects in (_KEY, _FIRST_KEY) else expects
        elif char in "{[" and expects in (_VALUE, _FIRST_VALUE):
            self._closing.append("}" if char == "{" else "]")
            self._expects = _FIRST_KEY if char == "{" else _FIRST_VALUE
        elif char == ":" and expects == _COLON:
            self._expects = _VALUE
        elif char == "," and expects == _NEXT:
            self._expects = _KEY if self._closing[-1] == "}" else _VALUE
        elif self._closes(char):
            self._closing.pop()
            self._end_value()
        else:
            return self._scalar(text, at)
        return at + 1

    def _closes(self, char: str) -> bool:
        opened = self._expects in (_NEXT, _FIRST_KEY, _FIRST_VALUE)
        return opened and self._closing[-1] == char

    def _scalar(self, text: str, at: int) -> int:
        scalar = _SCALAR.match(text, at)
        assert scalar is not None
        end = scalar.end()
        wanted = self._expects in (_VALUE, _FIRST_VALUE) and 0 < end - at <= LONGEST_SCALAR
        if wanted and end == len(text):
            return at
        if not wanted or not _VALID_SCALAR.fullmatch(text, at, end):
            self.faulty = True
            return at
        self._end_value()
        return end

    def _end_value(self) -> None:
        self.done = not self._closing
        self._expects = _NEXT
