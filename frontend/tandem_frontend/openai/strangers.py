"""What a body has that its request does not: fields that would change the answer and those that
look like a slip of the pen are refused, hints are passed over, as are tools that other servers have
built in, and of unknown fields the deployment decides. This runs only where a strict reader has
found one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from tandem import extra_fields
from tandem.errors import InvalidRequestError, UnsupportedError
from tandem_frontend.openai.foreign import Foreign

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

VERSION: Final = "_0123456789"
"""Characters of a version behind the name of a type."""


class _Typed(msgspec.Struct):
    type: Any = None


_typed = msgspec.json.Decoder(_Typed)
_members = msgspec.json.Decoder(Members)
_items = msgspec.json.Decoder(list[msgspec.Raw])


class KnownObject(NamedTuple):
    """An object of a body: the fields that it may have, and those that are known beside them."""

    struct: type[msgspec.Struct]
    """The type that the object is read as."""
    fields: frozenset[str]
    foreign: Mapping[str, Foreign]
    names: frozenset[str]
    inner: Mapping[str, KnownObject]
    """What its fields hold in which there may be such fields too: an object, or a list of them."""
    left_out: frozenset[str] = frozenset()
    """Types of objects that a list is read without, whatever version stands behind them."""
    types: frozenset[str] = frozenset()
    """Types that objects of a list of offers have in some dialect: one of any other type is left
    out too. Empty: it is no list of offers.
    """

    @staticmethod
    def of(
        struct: type[msgspec.Struct],
        foreign: Mapping[str, Foreign],
        left_out: frozenset[str] = frozenset(),
        types: frozenset[str] = frozenset(),
        /,
        **inner: KnownObject,
    ) -> KnownObject:
        fields = frozenset(struct.__struct_fields__)
        return KnownObject(struct, fields, foreign, fields.union(foreign), inner, left_out, types)

    def walk(self) -> Iterator[KnownObject]:
        """The kind itself and those of the objects in it: all may have fields that nobody knows."""
        yield self
        for inner in self.inner.values():
            yield from inner.walk()


class Strangers:
    """Goes through one body. Raises RequestError with `param`, or msgspec's errors for no JSON."""

    def __init__(self, rules: FieldRules) -> None:
        self._rules = rules
        self._refuses = rules.unknown == "refuse"
        self._ignored: dict[str, None] = {}
        self._unknown = 0
        self._extra: Members = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of what was passed over, safe to be shown, each once."""
        return tuple(self._ignored)

    @property
    def extra_fields(self) -> str:
        """The extra fields that classifiers are given, as a JSON object; empty: there are none."""
        if not self._extra:
            return ""
        text, most = msgspec.json.encode(self._extra), self._rules.max_extra_bytes
        largest = max(self._extra, key=lambda name: memoryview(self._extra[name]).nbytes)
        extra_fields.check_size(len(text), max_bytes=most, param=largest)
        extra_fields.read(text)
        return text.decode()

    def check(self, body: bytes, kind: KnownObject) -> bytes | msgspec.Raw:
        """Go through a body; what is wrong with it otherwise is for others to find. Returns the
        body without what is left out of its lists.
        """
        str(body, "utf-8")  # names and values that nobody reads are text too
        return self._check_object(body, kind, "", "")

    def _check_object(
        self, value: bytes | msgspec.Raw, kind: KnownObject, path: str, label: str
    ) -> bytes | msgspec.Raw:
        members = _members.decode(value)
        self._check(members, kind, path, label)
        changed = False
        for name, inner in kind.inner.items():
            given = members.get(name, _NULL)
            left = self._check_inner(given, inner, path + name, label + name)
            if left is not given:
                members[name] = msgspec.Raw(left)
                changed = True
        return msgspec.json.encode(members) if changed else value

    def _check_inner(
        self, value: msgspec.Raw, kind: KnownObject, path: str, label: str
    ) -> bytes | msgspec.Raw:
        if _begins(value, b"{"):
            return self._check_object(value, kind, f"{path}.", f"{label}.")
        if not _begins(value, b"["):
            return value
        items = _items.decode(value)
        left = [
            self._check_item(item, kind, f"{path}[{place}]", label)
            for place, item in enumerate(items)
        ]
        if all(one is other for one, other in zip(items, left, strict=True)):
            return value
        return msgspec.json.encode([msgspec.Raw(item) for item in left if item is not None])

    def _check_item(
        self, item: msgspec.Raw, kind: KnownObject, path: str, label: str
    ) -> bytes | msgspec.Raw | None:
        """None: the list is read without it."""
        if not _begins(item, b"{"):
            return item
        type = _plain_type(item) if kind.left_out else ""
        if type in kind.left_out:
            self._ignored[f"{label}[{type}]"] = None
            return None
        if type and kind.types and type not in kind.types:
            param = f"{path}.type"  # an offer of a type that nobody knows is as an unknown field is
            self._check_meant("type", type, kind.types, param)
            self._count_unknown(f"{label}[{_cleaned(type)}]", param)
            return None
        return self._check_object(item, kind, f"{path}.", f"{label}[].")

    def _check(self, members: Members, kind: KnownObject, path: str, label: str) -> None:
        """`label`: the path without positions."""
        for name, value in members.items():
            if name in kind.fields:
                continue
            if name in self._rules.extra and not path:
                self._extra[name] = value
                continue
            foreign = kind.foreign.get(name)
            param = path + name[:LONGEST_NAME]
            if foreign is None:
                self._check_meant("field", name, kind.names, param)
                self._count_unknown(label + _cleaned(name), param)
            elif foreign.is_harmless(value):
                continue
            elif not foreign.is_dropped(value):
                raise UnsupportedError(f"`{param}` is not supported: {foreign.reason}", param=param)
            else:
                self._ignored[label + name] = None

    def _check_meant(self, what: str, name: str, known: frozenset[str], param: str) -> None:
        """Raises InvalidRequestError for what is refused or was meant to be something else."""
        meant = meant_by(name, known)
        if self._refuses or meant:
            hint = f"; did you mean `{meant}`?" if meant else ""
            raise InvalidRequestError(f"Unknown {what} `{param}`{hint}", param=param)

    def _count_unknown(self, told: str, param: str) -> None:
        self._unknown += told not in self._ignored
        self._ignored[told] = None
        if self._unknown > MOST_IGNORED:
            raise InvalidRequestError(
                f"`{param}` is one unknown name too many: at most {MOST_IGNORED} are passed over",
                param=param,
            )


def _cleaned(name: str) -> str:
    return _UNCLEAN.sub("?", name[:LONGEST_NAME])


def meant_by(name: str, known: frozenset[str]) -> str | None:
    """The known name that was probably meant: it differs by few letters, case or joints aside."""
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
    """A quick test: a replaced letter takes one away and brings another."""
    most = _most_slips(other)
    return abs(len(one) - len(other)) <= most and len({*one} ^ {*other}) <= 2 * most


def without_version(type: str) -> str:
    """The name of a type, as `web_search` of `web_search_20250305`."""
    return type.rstrip(VERSION)


def _plain_type(item: msgspec.Raw) -> str:
    """What an object says of its type; empty: nothing."""
    type = _typed.decode(item).type
    return without_version(type) if isinstance(type, str) else ""


def _begins(value: msgspec.Raw, byte: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == byte
