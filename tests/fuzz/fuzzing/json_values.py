"""Changes to JSON that keep it JSON, most of the time: names and values that the API knows in
places where they do not belong, and values that it does not know.
"""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

from tandem_frontend.openai import openapi
from tandem_frontend.openai.foreign import OF_CHATS, OF_COMPLETIONS, OF_MESSAGES, OF_PARTS

from .values import FLOATS, INTEGERS, TEXTS, spoil_bytes

_DEEP = (3, 30, 70, 600)


@cache
def _names() -> tuple[str, ...]:
    """All that a body may hold, and some that it may not."""
    schemas = openapi.describe()["components"]["schemas"].values()
    known = {name for schema in schemas for name in schema.get("properties", {})}
    grammar = ("$ref", "anyOf", "allOf", "pattern", "items", "properties", "const", "enum", "type")
    return (
        *sorted(known),
        *sorted(OF_CHATS | OF_COMPLETIONS | OF_MESSAGES | OF_PARTS),
        *grammar,
        "",
        "\0",
        "x" * 300,
    )


def spoil_json(data: bytes, random: Random) -> bytes:
    """Change one place of a JSON text; one text in ten is changed as bytes."""
    if random.randrange(10) == 0:
        return spoil_bytes(data, random)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return spoil_bytes(data, random)
    return dumped(spoil_value(value, random))


def dumped(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        return b"[" * 2_000


def spoil_value(value: Any, random: Random) -> Any:
    """The value with one place of it changed."""
    if isinstance(value, dict) and value and random.randrange(4):
        return _spoil_object(dict(value), random)
    if isinstance(value, list) and value and random.randrange(4):
        return _spoil_list(list(value), random)
    return strange(value, random)


def _spoil_object(value: dict[str, Any], random: Random) -> dict[str, Any]:
    name = random.choice(tuple(value))
    match random.randrange(6):
        case 0:
            del value[name]
        case 1:
            value[random.choice(_names())] = value.pop(name)
        case 2:
            value[random.choice(_names())] = strange(value[name], random)
        case _:
            value[name] = spoil_value(value[name], random)
    return value


def _spoil_list(value: list[Any], random: Random) -> list[Any]:
    at = random.randrange(len(value))
    match random.randrange(5):
        case 0:
            del value[at]
        case 1:
            value *= random.choice((2, 17, 300))
            del value[3_000:]
        case _:
            value[at] = spoil_value(value[at], random)
    return value


def strange(value: Any, random: Random) -> Any:
    """Something else than `value`, or much more of it."""
    match random.randrange(9):
        case 0:
            return random.choice(INTEGERS)
        case 1:
            return random.choice(FLOATS)
        case 2:
            return random.choice(TEXTS)
        case 3:
            return random.choice((None, True, False, [], {}, [[]], {"": {}}, "\ud800"))
        case 4:
            return [value] * random.choice((1, 2, 129))
        case 5:
            return {random.choice(_names()): value}
        case 6:
            for _ in range(random.choice(_DEEP)):
                value = [value] if random.randrange(2) else {"items": value}
            return value
        case 7 if isinstance(value, str):
            return value * random.choice((2, 40, 400))
    return dict.fromkeys(random.sample(_names(), 3), value)
