"""Hints for an engine's KV cache, on their way from whoever places requests: one JSON object, an
envelope of actions, as SGLang and vLLM take it (`kv_hints`). What an action means, its engine says.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError

PARAM = "kv_hints"
MAX_BYTES = 16 * 1024
"""An envelope, as JSON."""
MAX_ACTIONS = 16
MAX_DEPTH = 16
"""Levels of nesting in one action's payload."""

_Name = Annotated[str, Meta(max_length=128)]


class _Action(msgspec.Struct, kw_only=True):
    action_id: _Name
    action_type: _Name
    action_version: _Name
    payload: dict[str, Any] = {}


class _Envelope(msgspec.Struct, kw_only=True):
    protocol_version: _Name
    message_id: _Name
    actions: Annotated[list[_Action], Meta(max_length=MAX_ACTIONS)] = []


_envelope = msgspec.json.Decoder(_Envelope)


def read(text: str | bytes) -> dict[str, Any]:
    """The envelope, as SGLang's GenerateReqInput takes it. Raises InvalidRequestError for what is
    none, or more than may be given.
    """
    check_size(len(text.encode() if isinstance(text, str) else text))
    try:
        found = _envelope.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"kv_hints: {error}", param=PARAM) from None
    if not all(_fits(each.payload, MAX_DEPTH) for each in found.actions):
        raise InvalidRequestError(
            f"kv_hints: a payload is nested deeper than {MAX_DEPTH} levels", param=PARAM
        )
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def check_size(count: int) -> None:
    """Raises InvalidRequestError where so many bytes are too many."""
    if count > MAX_BYTES:
        raise InvalidRequestError(
            f"kv_hints may be {MAX_BYTES} bytes of JSON, not {count}", param=PARAM
        )


def _fits(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_fits(each, levels - 1) for each in value)
