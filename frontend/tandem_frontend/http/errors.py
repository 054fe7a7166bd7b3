"""Failures of HTTP itself, in the shape of every other failure. They never cross the wire to
another component.
"""

from __future__ import annotations

import msgspec

from tandem.errors import RefusedError, RequestError, TandemError


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


class HostNotAllowedError(RequestError):
    """A local server without keys was called by a name that is not of its machine."""

    code = "host_not_allowed"
    http_status = 403


class MediaTypeError(RequestError):
    """A body was not said to be JSON, where any page could have sent it."""

    code = "unsupported_media_type"
    http_status = 415


class TooManyConnectionsError(RefusedError):
    """The frontend has as many connections as it takes."""

    code = "too_many_connections"


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
