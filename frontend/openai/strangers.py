"""Fields of a body that its request does not have: those that say nothing are passed over, those
that would change the answer and those that look like a slip of the pen are refused, and of the rest
the deployment decides. This runs only where a strict reader has found one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from frontend.openai.foreign import Foreign
from tandem import extra_fields
from tandem.errors import InvalidRequestError, UnsupportedError

UnknownFields: TypeAlias = Literal["refuse", "warn"]


class FieldRules(NamedTuple):
    """What becomes of fields of a body that its request does not have."""

    unknown: UnknownFields = "warn"
    extra: frozenset[str] = frozenset()
    """Names of extra fields, which classifiers are given."""
    max_extra_bytes: int = extra_fields.MAX_BYTES
    """What they may come to, as JSON."""


Members: TypeAlias = dict[str, msgspec.Raw]

MOST_IGNORED = 16
"""Unknown names that one request may have; one more is refused."""
LONGEST_NAME = 64
"""Characters of a name that are told."""
MOST_SLIPS = 2
"""By which a long name may differ from the known one that was meant."""
_NULL = msgspec.Raw(b"null")
_UNCLEAN = re.compile(r"[^A-Za-z0-9_.$-]")

_members = msgspec.json.Decoder(Members)
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Kind(NamedTuple):
    """An object of a body: the fields that it may have, and those that are known beside them."""

    fields: frozenset[str]
    foreign: Mapping[str, Foreign]
    names: frozenset[str]
    """Names of `fields` and of `foreign` together."""
    inner: Mapping[str, Kind]
    """What its fields hold in which there may be such fields too: an object, or a list of them."""

    @staticmethod
    def of(struct: type[msgspec.Struct], foreign: Mapping[str, Foreign], **inner: Kind) -> Kind:
        fields = frozenset(struct.__struct_fields__)
        return Kind(fields, foreign, fields.union(foreign), inner)


class Strangers:
    """Goes through one body. Everything raises InvalidRequestError or UnsupportedError with
    `param`, or what msgspec raises of what is no JSON.
    """

    def __init__(self, rules: FieldRules) -> None:
        self._rules = rules
        self._refuses = rules.unknown == "refuse"
        self._ignored: dict[str, None] = {}
        self._extra: Members = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of what was passed over without being known, safe to be shown, each once."""
        return tuple(self._ignored)

    @property
    def extra_fields(self) -> str:
        """Those that classifiers are given, as a JSON object; empty: there are none."""
        if not self._extra:
            return ""
        text, most = msgspec.json.encode(self._extra), self._rules.max_extra_bytes
        largest = max(self._extra, key=lambda name: memoryview(self._extra[name]).nbytes)
        extra_fields.check_size(len(text), max_bytes=most, param=largest)
        extra_fields.read(text)
        return text.decode()

    def check(self, body: bytes, kind: Kind) -> None:
        """Go through a body; what is wrong with it otherwise is for others to find."""
        str(body, "utf-8")  # names and values that nobody reads are text too
        self._check_object(body, kind, "", "")

    def _check_object(self, value: bytes | msgspec.Raw, kind: Kind, path: str, label: str) -> None:
        members = _members.decode(value)
        self._check(members, kind, path, label)
        for name, inner in kind.inner.items():
            self._check_inner(members.get(name, _NULL), inner, path + name, label + name)

    def _check_inner(self, value: msgspec.Raw, kind: Kind, path: str, label: str) -> None:
        if _begins(value, b"{"):
            self._check_object(value, kind, f"{path}.", f"{label}.")
        elif _begins(value, b"["):
            for place, item in enumerate(_items.decode(value)):
                if _begins(item, b"{"):
                    self._check_object(item, kind, f"{path}[{place}].", f"{label}[].")

    def _check(self, members: Members, kind: Kind, path: str, label: str) -> None:
        """`label`: the path without positions."""
        for name in members:
            if name in kind.fields:
                continue
            if name in self._rules.extra and not path:
                self._extra[name] = members[name]
                continue
            foreign = kind.foreign.get(name)
            param = path + name[:LONGEST_NAME]
            if foreign is None:
                self._ignore(name, kind, param, label)
            elif not foreign.passes(members[name]):
                raise UnsupportedError(f"`{param}` is not supported: {foreign.reason}", param=param)

    def _ignore(self, name: str, kind: Kind, param: str, label: str) -> None:
        meant = meant_by(name, kind.names)
        if self._refuses or meant:
            hint = f"; did you mean `{meant}`?" if meant else ""
            raise InvalidRequestError(f"Unknown field `{param}`{hint}", param=param)
        self._ignored[label + _UNCLEAN.sub("?", name[:LONGEST_NAME])] = None
        if len(self._ignored) > MOST_IGNORED:
            raise InvalidRequestError(
                f"`{param}` is one unknown field too many: at most {MOST_IGNORED} are ignored",
                param=param,
            )


def meant_by(name: str, known: frozenset[str]) -> str | None:
    """The known name that differs from it by so few letters that it was probably meant, whatever
    the case and however words are joined.
    """
    if len(name) > LONGEST_NAME:
        return None
    return _meant_by(name, known)


@functools.lru_cache(maxsize=1024)
def _meant_by(name: str, known: frozenset[str]) -> str | None:
    written = _plain(name)
    close = {
        candidate: count
        for candidate, letters in _all_plain(known)
        if _may_be_close(written, letters)
        and (count := slips(written, letters)) <= _most_slips(letters)
    }
    return min(close, key=close.__getitem__, default=None)


@functools.cache
def _all_plain(known: frozenset[str]) -> list[tuple[str, str]]:
    return [(name, _plain(name)) for name in sorted(known)]


def slips(one: str, other: str) -> int:
    """How many letters are to be added, left out, replaced or exchanged with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for count, letter in enumerate(one, 1):
        after = [count]
        for index, wanted in enumerate(other, 1):
            cost = min(row[index] + 1, after[-1] + 1, row[index - 1] + (letter != wanted))
            if before and index > 1 and (letter, wanted) == (other[index - 2], one[count - 2]):
                cost = min(cost, before[index - 2] + 1)
            after.append(cost)
        before, row = row, after
    return row[-1]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _most_slips(letters: str) -> int:
    """Fewer in short names: every word is like another of four letters."""
    return min(MOST_SLIPS, len(letters) // 3)


def _may_be_close(one: str, other: str) -> bool:
    """Without going through their letters in order; a replaced letter takes one away and brings
    another.
    """
    most = _most_slips(other)
    return abs(len(one) - len(other)) <= most and len({*one} ^ {*other}) <= 2 * most


def _begins(value: msgspec.Raw, byte: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == byte
