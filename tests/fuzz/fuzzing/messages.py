"""Changes to protobuf messages by their descriptors: extreme numbers, odd texts, fields that come
many times, and the messages that travel as bytes inside of others.
"""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tandem.v1 import common_pb2

from .json_values import spoil_json
from .values import FLOATS, INTEGERS, ODD_FLOATS, TEXTS, spoil_bytes

M = TypeVar("M", bound=Message)
_INSIDE: dict[str, type[Message]] = {
    "task": common_pb2.Task,
    "overlay": common_pb2.Task,
    "payload": common_pb2.TokenColumns,
}
"""Fields of bytes, and what they hold."""
_MOST_ITEMS = 200


def spoil_message(kind: type[M], data: bytes, random: Random) -> bytes:
    """A serialised message with one place changed; one in ten is changed as bytes."""
    if random.randrange(10) == 0:
        return spoil_bytes(data, random)
    try:
        message = kind.FromString(data)
    except DecodeError:
        return spoil_bytes(data, random)
    _spoil(message, random)
    return message.SerializeToString()


def _spoil(message: Message, random: Random) -> None:
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    field = random.choice(present if present and random.randrange(3) else fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _spoil_map(message, field, random)
    elif field.is_repeated:
        _spoil_items(message, field, random)
    elif random.randrange(8) == 0:
        message.ClearField(field.name)
    elif field.message_type is not None:
        _spoil_inside(getattr(message, field.name), random)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), random))


def _spoil_inside(message: Message, random: Random) -> None:
    message.SetInParent()
    if message.DESCRIPTOR.fields:
        _spoil(message, random)


def _spoil_items(message: Message, field: FieldDescriptor, random: Random) -> None:
    items = getattr(message, field.name)
    match random.randrange(4):
        case 0 if items:
            del items[random.randrange(len(items))]
        case 1 if items:
            items.extend(list(items)[: _MOST_ITEMS - len(items)])
        case 2 if items:
            chosen = random.randrange(len(items))
            if field.message_type is not None:
                _spoil_inside(items[chosen], random)
            else:
                items[chosen] = _scalar(field, items[chosen], random)
        case _ if len(items) < _MOST_ITEMS:
            if field.message_type is not None:
                _spoil_inside(items.add(), random)
            else:
                items.append(_scalar(field, items[-1] if items else None, random))


def _spoil_map(message: Message, field: FieldDescriptor, random: Random) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    mapping = getattr(message, field.name)
    if value.message_type is None and len(mapping) < _MOST_ITEMS:
        mapping[_scalar(key, None, random)] = _scalar(value, None, random)


def _scalar(field: FieldDescriptor, given: Any, random: Random) -> Any:
    """A value that the field can hold."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(field, given or b"", random)
        case FieldDescriptor.CPPTYPE_STRING if field.name == "args_json":
            return spoil_json((given or "{}").encode(), random).decode(errors="replace")
        case FieldDescriptor.CPPTYPE_STRING:
            text = random.choice(TEXTS)
            return text if random.randrange(3) else (given or "a") * random.choice((2, 30)) + text
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice((*FLOATS, *ODD_FLOATS))
        case FieldDescriptor.CPPTYPE_BOOL:
            return not given
    return _integer(field, random)


def _integer(field: FieldDescriptor, random: Random) -> int:
    """Small numbers too: those that other messages use."""
    bits = 64 if field.cpp_type in _LONG else 32
    signed = field.cpp_type in _SIGNED
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    value = random.randrange(12) if random.randrange(2) else random.choice(INTEGERS)
    return min(max(value, low), high)


_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_SIGNED = (
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_ENUM,
)


def _bytes(field: FieldDescriptor, given: bytes, random: Random) -> bytes:
    kind = _INSIDE.get(field.name)
    return spoil_bytes(given, random) if kind is None else spoil_message(kind, given, random)
