"""From a regular expression, that of its beginnings: what text may end with while a match is on.

For `ab+c` that is the empty text, `a`, `ab`, `abb` …, but not `abbc`, which is a match and cannot
go on. So a hook knows what it must hold back, whatever the pattern. It is built from the pattern's
text, with

    begins(x)     = empty                      one character, or an assertion such as \\b
    begins(xy)    = begins(x) | x begins(y)
    begins(x|y)   = begins(x) | begins(y)
    begins(x{,n}) = x{,n-1} begins(x)

It may hold more than is needed, never less: assertions count as undecided until text follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FLAGS = re.compile(r"\(\?([imsU]*(?:-[imsU]+)?)\)")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[imsU]*(?:-[imsU]+)?):))?")
_REPEAT = re.compile(r"(?:[*+?]|\{(?P<least>\d+)(?P<comma>,)?(?P<most>\d+)?\})\??")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[0-9A-Fa-f]*\}|..)|[0-7]{1,3}|.)", re.DOTALL)
_CLASS = re.compile(
    r"\[\^?\]?(?:\[:\^?\w+:\]|\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|[^\]\\])*\]", re.DOTALL
)


class NotUnderstoodError(Exception):
    """A pattern with syntax that this module does not take apart."""


@dataclass(frozen=True, slots=True)
class _Part:
    source: str
    """The part as a pattern of its own that anything can stand beside."""
    begins: str | None
    """None: it has no beginning, because it is empty."""


def beginnings(pattern: str) -> str:
    """The pattern of `pattern`'s beginnings, for a pattern that RE2 accepts.

    Raises NotUnderstoodError where it cannot be taken apart: `\\Q…\\E`, `\\C`, and flags that
    change in the middle of a group.
    """
    flags = _FLAGS.match(pattern)
    parser = _Parser(pattern, flags.end() if flags else 0)
    whole = parser.alternatives()
    if parser.place != len(pattern):
        raise NotUnderstoodError(pattern)
    return f"(?{flags[1] if flags else ''}:{whole.begins or ''})"


class _Parser:
    def __init__(self, pattern: str, place: int) -> None:
        self._pattern = pattern
        self.place = place

    def alternatives(self) -> _Part:
        found = [self._row()]
        while self._take("|"):
            found.append(self._row())
        begins = [part.begins for part in found if part.begins is not None]
        source = "|".join(part.source for part in found)
        return _Part(f"(?:{source})", _any_of(begins))

    def _row(self) -> _Part:
        parts: list[_Part] = []
        while self.place < len(self._pattern) and self._pattern[self.place] not in "|)":
            parts.append(self._repeated(self._one()))
        begins: str | None = None
        for part in reversed(parts):
            ways = [] if part.begins is None else [part.begins]
            if begins is not None:
                ways.append(part.source + begins)
            begins = _any_of(ways)
        return _Part("".join(part.source for part in parts), begins)

    def _one(self) -> _Part:
        character = self._pattern[self.place]
        if character == "(":
            return self._group()
        if character == "[":
            return self._single(_CLASS)
        if character != "\\":
            self.place += 1
            return _Part(character, "")
        if self._pattern[self.place + 1 : self.place + 2] in ("Q", "C", "E"):
            raise NotUnderstoodError(self._pattern)
        return self._single(_ESCAPE)

    def _single(self, kind: re.Pattern[str]) -> _Part:
        found = kind.match(self._pattern, self.place)
        if found is None:
            raise NotUnderstoodError(self._pattern)
        self.place = found.end()
        return _Part(found.group(), "")

    def _group(self) -> _Part:
        found = _GROUP.match(self._pattern, self.place)
        if found is None or _FLAGS.match(self._pattern, self.place):
            raise NotUnderstoodError(self._pattern)
        self.place = found.end()
        inside = self.alternatives()
        if not self._take(")"):
            raise NotUnderstoodError(self._pattern)
        opened = f"(?{found['flags'] or ''}:"
        begins = None if inside.begins is None else f"{opened}{inside.begins})"
        return _Part(f"{opened}{inside.source})", begins)

    def _repeated(self, part: _Part) -> _Part:
        while (found := _REPEAT.match(self._pattern, self.place)) is not None:
            self.place = found.end()
            source = f"(?:{part.source}{found.group()})"
            begins = part.begins
            most = _most(found)
            if begins is not None and most != 1:
                more = "*" if most is None else f"{{0,{most - 1}}}"
                begins = None if most == 0 else f"(?:{part.source}){more}{begins}"
            part = _Part(source, begins)
        return part

    def _take(self, character: str) -> bool:
        taken = self._pattern.startswith(character, self.place)
        self.place += taken
        return taken


def _most(repeat: re.Match[str]) -> int | None:
    """How often at most; None: without bound."""
    if repeat["least"] is None:
        return 1 if repeat.group()[0] == "?" else None
    if repeat["most"] is not None:
        return int(repeat["most"])
    return None if repeat["comma"] else int(repeat["least"])


def _any_of(ways: list[str]) -> str | None:
    """Any of several patterns; the empty one as a `?`."""
    if not ways:
        return None
    longer = [way for way in ways if way]
    if not longer:
        return ""
    return f"(?:{'|'.join(longer)})" + ("?" if len(longer) < len(ways) else "")
