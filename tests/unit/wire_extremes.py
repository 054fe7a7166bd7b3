"""Every field of a message, each in turn with values that nobody means: for tests of the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_UINT32: (0, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (0, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (0, -(2**31), 77, 2**31 - 1),
    FieldDescriptor.TYPE_FLOAT: (float("nan"), float("inf"), float("-inf"), -1.0),
    FieldDescriptor.TYPE_DOUBLE: (float("nan"), float("inf"), float("-inf"), -1.0),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: ("", "\n\0\U0010ffff", "x" * 1_000_000),
    FieldDescriptor.TYPE_BYTES: (b"", b"\xff" * 9, b"\x0a" * 1_000_000),
}
MANY = 70_000
"""More than anybody says at once."""


def extremes(example: Message) -> Iterator[tuple[str, Message]]:
    """Copies of a message in which one field is extreme, each with the way to it. Every field of
    the example must be set, those of oneofs apart: else one that is added later goes untried.
    """
    for path, field in fields(example):
        for value in _values(field):
            copy = type(example)()
            copy.CopyFrom(example)
            _put(copy, path, field, value)
            yield f"{'.'.join(path)}={str(value)[:12]}", copy


def fields(message: Message) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    """The way to each field, through the first of repeated ones. Raises AssertionError for one that
    is not set.
    """
    descriptor: Descriptor = message.DESCRIPTOR
    given = {field.name for field, _ in message.ListFields()}
    for field in descriptor.fields:
        one_of = field.containing_oneof
        if one_of is not None and not field.has_presence:
            continue
        if field.name not in given:
            assert one_of is not None or _is_zero(field, message), (
                f"the example of {descriptor.full_name} lacks {field.name}"
            )
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                continue
        yield (field.name,), field
        if field.type == FieldDescriptor.TYPE_MESSAGE and not _is_map(field):
            value = getattr(message, field.name)
            inner = value[0] if field.is_repeated else value
            yield from (((field.name, *path), below) for path, below in fields(inner))


def _is_zero(field: FieldDescriptor, message: Message) -> bool:
    """A number that the example has as zero, which the wire does not tell from absent."""
    return not field.is_repeated and field.type != FieldDescriptor.TYPE_MESSAGE


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _values(field: FieldDescriptor) -> Iterator[Any]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        yield None  # absent
        return
    values = _NUMBERS[field.type]
    if not field.is_repeated:
        yield from values
        return
    yield []
    for value in values:
        yield [value]
        yield [value, value]
    small = values[0] if len(str(values[0])) < 9 else values[-1]
    yield [small] * MANY


def _put(message: Any, path: tuple[str, ...], field: FieldDescriptor, value: Any) -> None:
    for name in path[:-1]:
        inner = getattr(message, name)
        message = inner[0] if hasattr(inner, "add") else inner
    message.ClearField(path[-1])
    if value is None:
        return
    if field.is_repeated:
        getattr(message, path[-1]).extend(value)
    else:
        setattr(message, path[-1], value)
