"""Errors in the shape of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tandem.errors import RefusedError, TandemError
from tandem_answers.messages.answers import ErrorType, MessageError, MessageErrorDetail

OVERLOADED: Final = 529
"""Anthropic's status of a server that takes no more now."""

_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
    504: "timeout_error",
}


def status(error: TandemError) -> int:
    return OVERLOADED if isinstance(error, RefusedError) else error.http_status


def body(error: TandemError, request_id: str) -> bytes:
    """As JSON. The message names the field at fault."""
    told = status(error)
    type = _TYPES.get(told, _other(told))
    named = not error.param or f"`{error.param}`" in error.message
    message = error.message if named else f"{error.message}: `{error.param}`"
    detail = MessageErrorDetail(type=type, message=message)
    return msgspec.json.encode(MessageError(error=detail, request_id=request_id))


def _other(status: int) -> ErrorType:
    return "api_error" if status >= 500 else "invalid_request_error"
