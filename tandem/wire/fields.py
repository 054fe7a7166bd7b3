"""Fields of serialised messages, without their messages.

They are looked at before a message is parsed: what a map of millions of entries costs to parse,
nobody can bound afterwards. And small messages that are sent all the time are written so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
SHORT: Final = tuple(bytes((number,)) for number in range(0x80))
"""Encoded numbers below 128: one byte each."""


def fields(message: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    """The number and the content of each field at the top, in order; of one that is no bytes the
    content is empty. Takes time with every field: whoever asks stops at some number of them.

    Raises ValueError for bytes that are no message.
    """
    view = memoryview(message)
    place, end = 0, len(view)
    while place < end:
        tag, place = _varint(view, place)
        kind, content = tag & 7, view[:0]
        if kind == _VARINT:
            _, place = _varint(view, place)
        elif kind == _BYTES:
            size, place = _varint(view, place)
            content = view[place : place + size]
            place += size
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if place > end:
            raise ValueError("a field that is longer than its message")
        yield tag >> 3, content


def _varint(view: bytes | memoryview, place: int) -> tuple[int, int]:
    """A number, and where the next byte is."""
    value = 0
    for shift in range(_LONGEST_VARINT):
        if place >= len(view):
            break
        byte = view[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place
    raise ValueError("a number without an end")


def head(message: Any, name: str) -> bytes:
    """What a field of this message's type begins with that holds a number or has a length."""
    field = message.DESCRIPTOR.fields_by_name[name]
    plain = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) and not field.is_packed
    return varint(field.number << 3 | (_VARINT if plain else _BYTES))


def varint(number: int) -> bytes:
    """A number as it is written: seven bits a byte, the lowest first."""
    if number < 0x80:
        return SHORT[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + varint(number >> 7)


def number(written: bytes) -> int | None:
    """The number encoded by exactly these bytes; None: they encode none, or several."""
    try:
        value, end = _varint(written, 0)
    except ValueError:
        return None
    return value if end == len(written) else None
