"""Reads JSON as it comes, character by character, to see where it stops being JSON (RFC 8259)."""

from __future__ import annotations

import json
import re
from typing import Literal

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = " \t\n\r"
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")

_Number = Literal["minus", "zero", "whole", "point", "fraction", "e", "sign", "exponent"]
_NUMBER: dict[_Number, dict[str, _Number]] = {
    "minus": {"0": "zero", **dict.fromkeys("123456789", "whole")},
    "zero": {".": "point", "e": "e", "E": "e"},
    "whole": {".": "point", "e": "e", "E": "e", **dict.fromkeys(_DIGITS, "whole")},
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"e": "e", "E": "e", **dict.fromkeys(_DIGITS, "fraction")},
    "e": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "exponent")},
    "sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_NUMBER_ENDS = frozenset(("zero", "whole", "fraction", "exponent"))

_Expect = Literal["value", "value or ]", "key", "key or }", ":", ", or close", "nothing"]


class JsonReader:
    """Reads one JSON value: any, or an object only. Memory grows with the nesting alone."""

    __slots__ = (
        "_expect",
        "_is_key",
        "_literal",
        "_number",
        "_objects_only",
        "_stack",
        "_string",
        "faulty",
    )

    def __init__(self, *, objects_only: bool = False) -> None:
        self.faulty = False
        """The next character cannot belong to the value, which is not complete."""
        self._expect: _Expect = "value"
        self._objects_only = objects_only
        self._stack: list[str] = []
        """The open brackets."""
        self._string = ""
        """In a string: what is expected of its next character, a quotation mark where any may come;
        empty: in none.
        """
        self._is_key = False
        self._literal = ""
        """What is left of true, false or null."""
        self._number: _Number | None = None

    @property
    def over(self) -> bool:
        """The value is complete, and nothing can follow."""
        return self._expect == "nothing" and self._number is None

    @property
    def complete(self) -> bool:
        """The value is complete if nothing follows."""
        if self._number is not None and not self._stack:
            return self._number in _NUMBER_ENDS
        return self.over

    def read(self, text: str, at: int = 0) -> int:
        """Reads `text` from `at` on, and returns the place of the first character that does not
        belong to the value: the end of the text where the value may go on.
        """
        size = len(text)
        while at < size:
            if self._string == '"':
                found = _PLAIN.match(text, at)
                at = found.end() if found else at
                if at == size:
                    break
            if self.over or not self._step(text[at]):
                self.faulty = not self.over
                return at
            at += 1
        return at

    def mended(self, text: str, at: int) -> tuple[str, int]:
        """Reads as `read` does, and gives what was read as valid JSON too: a control character in a
        string, and a backslash that begins no escape, are escaped. A part of an escape at the end
        of the text is not read; it has to come again, with more behind it.
        """
        written = []
        while True:
            end = self.read(text, at)
            part = self._take_back_escape()
            written.append(text[at : end - part])
            if not self.faulty or not self._string:
                return "".join(written), end - part
            at = end - part + 1
            written.append(json.dumps(text[at - 1])[1:-1])
            self.faulty = False

    # --- inside ----------------------------------------------------------------------------------

    def _step(self, character: str) -> bool:
        if self._string:
            return self._in_string(character)
        if self._literal:
            if character != self._literal[0]:
                return False
            self._literal = self._literal[1:]
            if not self._literal:
                self._value_over()
            return True
        if self._number is not None:
            after = _NUMBER[self._number].get(character)
            if after is not None:
                self._number = after
                return True
            if self._number not in _NUMBER_ENDS:
                return False
            self._number = None
            self._value_over()
            if self.over:
                return False
        return character in _SPACE or self._structure(character)

    def _structure(self, character: str) -> bool:
        expect = self._expect
        if expect in ("value", "value or ]"):
            if character == "]" and expect == "value or ]":
                return self._close("[")
            return self._value(character)
        if expect in ("key", "key or }"):
            if character == "}" and expect == "key or }":
                return self._close("{")
            if character == '"':
                self._string, self._is_key = '"', True
            return character == '"'
        if expect == ":":
            self._expect = "value" if character == ":" else expect
            return character == ":"
        if character == ",":
            self._expect = "key" if self._stack[-1] == "{" else "value"
            return True
        return self._close("{" if character == "}" else "[") if character in "}]" else False

    def _value(self, character: str) -> bool:
        if self._objects_only and not self._stack and character != "{":
            return False
        if character in "{[":
            self._stack.append(character)
            self._expect = "key or }" if character == "{" else "value or ]"
        elif character == '"':
            self._string, self._is_key = '"', False
        elif character in _LITERALS:
            self._literal = _LITERALS[character]
        elif character == "-":
            self._number = "minus"
        elif character in _DIGITS:
            self._number = "zero" if character == "0" else "whole"
        else:
            return False
        return True

    def _in_string(self, character: str) -> bool:
        if self._string == '"':
            if character == '"':
                self._string = ""
                if self._is_key:
                    self._expect = ":"
                else:
                    self._value_over()
                return True
            if character != "\\":
                return False
            self._string = "\\"
        elif self._string == "\\":
            if character != "u" and character not in _ESCAPES:
                return False
            self._string = "uuuu" if character == "u" else '"'
        elif character not in _HEX:
            return False
        else:
            self._string = self._string[1:] or '"'
        return True

    def _take_back_escape(self) -> int:
        """Forgets the part of an escape that was read; gives the number of its characters."""
        if not self._string or self._string == '"':
            return 0
        part = 1 if self._string == "\\" else 2 + 4 - len(self._string)
        self._string = '"'
        return part

    def _close(self, bracket: str) -> bool:
        if self._stack[-1] != bracket:
            return False
        self._stack.pop()
        self._value_over()
        return True

    def _value_over(self) -> None:
        self._expect = ", or close" if self._stack else "nothing"
