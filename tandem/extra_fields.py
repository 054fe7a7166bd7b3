"""Fields of a client's body that OpenAI's API does not have, on their way to classifiers: one JSON
object, whose bounds hold for all who send and take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tandem.errors import InvalidRequestError

PARAM = "extra_fields"
MAX_BYTES = 128 * 1024
"""As JSON, all of a request together."""
MAX_FIELDS = 64
MAX_NAME_CHARACTERS = 64
MAX_DEPTH = 32
"""Levels of nesting in one field's JSON."""

_object = msgspec.json.Decoder(dict[str, Any])


def read(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The fields by their names. Raises InvalidRequestError, with the field as `param`, for more
    than may be given, and for what is no JSON object.
    """
    if not text:
        return {}
    check_size(len(text.encode() if isinstance(text, str) else text), max_bytes=max_bytes)
    try:
        fields = _object.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidRequestError("extra_fields must be a JSON object", param=PARAM) from None
    if len(fields) > MAX_FIELDS:
        raise InvalidRequestError(f"there are more than {MAX_FIELDS} extra fields", param=PARAM)
    for name, value in fields.items():
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise InvalidRequestError(
                f"the name of an extra field has 1 to {MAX_NAME_CHARACTERS} characters",
                param=PARAM,
            )
        if not _fits(value, MAX_DEPTH):
            raise InvalidRequestError(
                f"`{name}` is nested deeper than {MAX_DEPTH} levels", param=name
            )
    return fields


def check_size(count: int, *, max_bytes: int = MAX_BYTES, param: str = PARAM) -> None:
    """Raises InvalidRequestError where so many bytes of them are too many."""
    if count > max_bytes:
        raise InvalidRequestError(
            f"`{param}`: extra fields may be {max_bytes} bytes of JSON together, not {count}",
            param=param,
        )


def _fits(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        inner: Iterable[object] = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        return True
    return levels > 0 and all(_fits(each, levels - 1) for each in inner)
