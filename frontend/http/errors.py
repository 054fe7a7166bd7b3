"""Failures of HTTP itself, in the shape of every other failure. They never cross the wire to
another component.
"""

from __future__ import annotations

import msgspec

from tandem.errors import RequestError, TandemError


class NotFoundError(RequestError):
    """The server has no such path."""

    code = "not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, path: str, *, given: str, allowed: str) -> None:
        super().__init__(f"{path} takes {allowed}, not {given}")
        self.allowed = allowed


class ReceiveTimeoutError(RequestError):
    """The client did not send its request in time."""

    code = "receive_timeout"
    http_status = 408


class HeadTooLargeError(RequestError):
    """The request line and headers exceed their limit."""

    code = "headers_too_large"
    http_status = 431

    def __init__(self, limit: int) -> None:
        super().__init__(f"Request line and headers must not exceed {limit} bytes")


def body(error: TandemError) -> bytes:
    """OpenAI's error object as JSON."""
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param or None,
                "code": error.code,
            }
        }
    )
