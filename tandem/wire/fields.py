"""Fields of serialised messages, without their messages.

They are looked at before a message is parsed: what a map of millions of entries costs to parse,
nobody can bound afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from tandem.wire.frames import BYTES, VARINT, read_varint

_FIXED64, _FIXED32 = 1, 5


def fields(message: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    """The number and the content of each field at the top, in order; of one that is no bytes the
    content is empty. Takes time with every field: whoever asks stops at some number of them.

    Raises ValueError for bytes that are no message.
    """
    view = memoryview(message)
    for number, start, end in places(view):
        yield number, view[start:end]


def places(message: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Likewise, with where in the message the content begins and ends."""
    view = memoryview(message)
    place, end = 0, len(view)
    while place < end:
        tag, place = read_varint(view, place)
        kind, size = tag & 7, 0
        if kind == VARINT:
            _, place = read_varint(view, place)
        elif kind == BYTES:
            size, place = read_varint(view, place)
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        place += size
        if place > end:
            raise ValueError("a field that is longer than its message")
        yield tag >> 3, place - size, place
