"""Calls between tags, perhaps in free text, as a grammar of llguidance (its dialect of Lark).

llguidance reads greedily and never again. So where texts may begin alike, each is one lexeme from
there on; and free text before a call is a lazy lexeme, which ends at the first mark of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from tandem.logits.forms.limits import MAX_SCHEMA, MAX_TEXT

ONE_LINE: Final[Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python's json.dumps, and as xgrammar without free whitespace."""
LENIENT: Final[Mapping[str, Any]] = {"x-guidance": {"lenient": True}}
"""What a schema has that loses the keywords and formats which llguidance cannot force. Otherwise
they are an error."""
_BEGINNINGS: Final = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}
"""With what JSON of a type begins."""
_FIRST_CALL: Final = 2
"""The line of the first call's rule."""
_BAD_SCHEMA: Final = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: (.*)")
_ALIKE: Final = "a text that begins as JSON does stands where JSON may stand: they look alike"

Piece: TypeAlias = str | int
"""A part of a text: text without special tokens, or the id of one."""
Written: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
"""A text that may be empty."""


class TaggedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON of a schema, between two texts."""

    schema: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_SCHEMA)]
    begin: Written = ""
    end: Written = ""


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of tandem.logits.ready.tagged, which says what they mean."""

    calls: Sequence[TaggedCall]
    triggers: Sequence[str]
    several: bool
    separator: str
    begin: str
    end: str
    before: str
    answer: dict[str, Any] | None
    pattern: str | None = None
    choices: Sequence[str] | None = msgspec.field(default=None, name="texts")

    @staticmethod
    def of(source: str) -> Tags:
        """From the source of a form."""
        return msgspec.json.decode(source, type=Tags)

    @property
    def in_section(self) -> bool:
        """Something is around all calls."""
        return bool(self.begin or self.end)

    @property
    def text_follows(self) -> bool:
        """In free text, more of it and of calls may follow. Calls that nothing is around stand each
        for itself. A section that does not end might go on by a separator, which free text hides.
        """
        return self.several and bool(self.end or not self.begin)

    def openings(self) -> list[str]:
        """What each call begins with where it is the first."""
        return [self.begin + call.begin for call in self.calls]

    def texts(self) -> Iterator[str]:
        """Literal texts around the calls."""
        yield from (self.begin, self.separator, self.end)
        for call in self.calls:
            yield from (call.begin, call.end)


class SpecialTokens:
    """Tokens that llguidance knows by their ids alone: no text matches them."""

    def __init__(self, ids: Mapping[str, int], ends: Collection[int] = ()) -> None:
        """`ids`: by their texts. `ends`: tokens that end an answer."""
        self.names = {token: name for name, token in ids.items()}
        self._ids = ids
        self._ends = frozenset(ends)
        longest_first = sorted(ids, key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def split(self, text: str) -> list[Piece]:
        """As tokenizers do: at the first that is found, and of those at the longest. Raises
        ValueError for a text that nothing could follow.
        """
        pieces = [self._ids.get(part, part) for part in self._any.split(text) if part]
        if self._ends.intersection(pieces):
            raise ValueError("a text holds a token that ends the answer")
        return pieces

    def beside(self, texts: Iterable[str]) -> list[int]:
        """Token ids that are neither in these texts nor an end."""
        marks = {piece for text in texts for piece in self.split(text)}
        return sorted(self.names.keys() - self._ends - marks)


@dataclass(frozen=True, slots=True)
class _Mark:
    """By what the end of free text is known: a text, or a special token behind one."""

    text: str
    token: int | None = None


def lark(tags: Tags, special: SpecialTokens) -> str:
    """The grammar. Raises ValueError for calls that could not be told from what else may stand in
    their place.
    """
    return _Grammar(tags, special).text()


def blamed(error: str) -> str:
    """llguidance's error, with the argument that caused it."""
    found = _BAD_SCHEMA.match(error)
    if found is None:
        return error
    place = int(found[1]) - _FIRST_CALL
    return f"{'answer' if place < 0 else f'calls[{place}].schema'}: {found[2]}"


class _Grammar:
    def __init__(self, tags: Tags, special: SpecialTokens) -> None:
        self._tags = tags
        self._special = special
        self._marks: dict[_Mark, str] = {}
        self._rules = [
            f"call_{place}: {_json(call.schema)} {self._written(call.end)}"
            for place, call in enumerate(tags.calls)
        ]
        self._rules.append("TEXT: /(?s:.*)/")

    def text(self) -> str:
        """A rule a line; `blamed` knows their order."""
        start = self._calls_in_text() if self._tags.triggers else self._calls_alone()
        if self._tags.before:
            start = self._after_before(start)
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _calls_alone(self) -> str:
        tags = self._tags
        if tags.pattern is not None:
            return _regex(tags.pattern)
        if tags.choices is not None:
            return _any(map(self._written, tags.choices))
        answer = tags.answer
        if answer is not None and not tags.calls:
            return _json(answer)
        first = self._any_call(tags.openings(), [] if answer is None else [answer])
        calls = f"{first} {self._further()}"
        return calls if answer is None else f"{calls} | {_json(answer)}"

    def _calls_in_text(self) -> str:
        tags = self._tags
        text = self._free_text(tags.texts())
        calls = f"{text} {self._first_call()} {self._further() if tags.in_section else ''}"
        return f"({calls})* {text} TEXT" if tags.text_follows else f"{calls} | {text} TEXT"

    def _after_before(self, start: str) -> str:
        """Where free text is an answer, it is one without `before` too."""
        before = self._tags.before
        text = self._free_text([before])
        mark, rest = self._mark(self._special.split(before), len(before))
        alternative = f" | {text} TEXT" if self._tags.triggers else ""
        return f"{text} {mark} {self._sequence(rest)} ({start}){alternative}"

    def _first_call(self) -> str:
        """From the mark on that ends the free text."""
        calls: dict[str, list[str]] = {}
        for place, opening in enumerate(self._tags.openings()):
            known = min(len(each) for each in self._tags.triggers if opening.startswith(each))
            mark, rest = self._mark(self._special.split(opening), known)
            calls.setdefault(mark, []).append(f"{self._sequence(rest)} call_{place}")
        return _any(f"{mark} {_any(which)}" for mark, which in calls.items())

    def _further(self) -> str:
        """What follows the first call."""
        tags = self._tags
        more = ""
        if tags.several:
            openings = [tags.separator + call.begin for call in tags.calls]
            more = f"{self._any_call(openings)}*"
        return f"{more} {self._written(tags.end)}"

    def _any_call(self, openings: Sequence[str], beside: Sequence[Mapping[str, Any]] = ()) -> str:
        """`beside`: schemas of JSON that may come instead."""
        pieces = [self._special.split(opening) for opening in openings]
        bare = [
            call.schema for call, each in zip(self._tags.calls, pieces, strict=True) if not each
        ]
        json_begins = tuple("".join(map(_beginnings, [*bare, *beside])))
        for first, *_ in filter(None, pieces):
            if isinstance(first, str) and first.startswith(json_begins):
                raise ValueError(_ALIKE)
        return _any(f"{self._sequence(each)} call_{n}" for n, each in enumerate(pieces))

    def _mark(self, pieces: Sequence[Piece], known: int) -> tuple[str, list[Piece]]:
        """The rule for free text up to the mark of a text, of which `known` characters tell that it
        is there; and the rest of the text.
        """
        before = pieces[0] if isinstance(pieces[0], str) else ""
        token = next((piece for piece in pieces[:2] if isinstance(piece, int)), None)
        if token is None or known <= len(before):
            left = [before[known:]] if before[known:] else []
            return self._mark_rule(_Mark(before[:known])), [*left, *pieces[1:]]
        return self._mark_rule(_Mark(before, token)), list(pieces[pieces.index(token) + 1 :])

    def _mark_rule(self, mark: _Mark) -> str:
        """A special token also counts where a model spells it: readers see no difference."""
        name = self._marks.get(mark)
        if name is not None:
            return name
        name = self._marks[mark] = f"mark_{len(self._marks)}"
        if mark.token is None:
            self._rules.append(f"{name}[lazy]: TEXT {_quoted(mark.text)}")
            return name
        ends = f"TEXT {_quoted(mark.text)}" if mark.text else "TEXT"
        spelled = _quoted(mark.text + self._special.names[mark.token])
        self._rules += [
            f"{name.upper()}: {ends}",
            f"{name}_spelled[lazy]: TEXT {spelled}",
            f"{name}: {name.upper()} <[{mark.token}]> | {name}_spelled",
        ]
        return name

    def _free_text(self, marks: Iterable[str]) -> str:
        """Free text up to its last special token."""
        tokens = self._special.beside(marks)
        return f"(TEXT <[{','.join(map(str, tokens))}]>)*" if tokens else ""

    def _written(self, text: str) -> str:
        return self._sequence(self._special.split(text))

    def _sequence(self, pieces: Iterable[Piece]) -> str:
        return " ".join(
            f"<[{piece}]>" if isinstance(piece, int) else _quoted(piece) for piece in pieces
        )


def _any(alternatives: Iterable[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _beginnings(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    known = _BEGINNINGS.get(kind) if isinstance(kind, str) else None
    return "".join(_BEGINNINGS.values()) if known is None else known


def _quoted(text: str) -> str:
    return json.dumps(text)


def _regex(pattern: str) -> str:
    """Between slashes: those in it, and the ends of lines, are escaped."""
    escaped = re.sub(r"\\.|/", lambda m: m[0] if m[0] != "/" else r"\/", pattern, flags=re.DOTALL)
    return f"/{escaped.replace(chr(10), chr(92) + 'n').replace(chr(13), chr(92) + 'r')}/"


def _json(schema: Mapping[str, Any]) -> str:
    lenient = LENIENT["x-guidance"] if schema.get("x-guidance") == LENIENT["x-guidance"] else {}
    return f"%json {json.dumps({**schema, 'x-guidance': {**ONE_LINE, **lenient}})}"
