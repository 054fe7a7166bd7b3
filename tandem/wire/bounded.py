"""Messages are parsed in one go, on the event loop. What takes long to parse is refused unparsed: a
message of very many parts, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from tandem.wire.fields import fields

SMALL_BYTES: Final = 64 * 1024
"""Messages up to this have too few parts to matter."""
MOST_PARTS: Final = 8_192
"""Fields, entries of maps and items of lists, at all levels."""
MOST_TEXT_BYTES: Final = 4 * 1024 * 1024
MOST_NUMBERS_BYTES: Final = 1024 * 1024
"""Holds for a list of numbers: 350,000 token ids. What travels as bytes is not looked at here."""

Parse = Callable[[bytes], Any]


def bounded(parse: Parse, *, streams: bool) -> Parse:
    """`parse` is the FromString of a message's class. A message that takes long to parse is
    refused: in a stream it raises DecodeError, as one that cannot be parsed does; of a call that
    has only one it becomes None, for the servicer to say so.
    """
    message: Descriptor = parse.__self__.DESCRIPTOR  # type: ignore[attr-defined]

    def parse_bounded(data: bytes) -> Any:
        if len(data) > SMALL_BYTES:
            try:
                check(data, message)
            except DecodeError:
                if streams:
                    raise
                return None
        return parse(data)

    return parse_bounded


def check(data: bytes, message: Descriptor) -> None:
    """Raises DecodeError where so many bytes are too much of such a message to be parsed."""
    try:
        _count(memoryview(data), message, MOST_PARTS)
    except ValueError as error:
        raise DecodeError(str(error)) from error


def _count(data: bytes | memoryview, message: Descriptor, left: int) -> int:
    """How many parts may still come. Raises ValueError."""
    for number, content in fields(data):
        left -= 1
        if left < 0:
            raise ValueError(f"a message of more than {MOST_PARTS} parts")
        field = message.fields_by_number.get(number)
        if field is None or not content:
            continue
        if field.message_type is not None:
            left = _count(content, field.message_type, left)
        elif field.type != FieldDescriptor.TYPE_BYTES:
            text = field.type == FieldDescriptor.TYPE_STRING
            if len(content) > (MOST_TEXT_BYTES if text else MOST_NUMBERS_BYTES):
                raise ValueError(f"{field.name} takes {len(content)} bytes")
    return left
