"""Which headers HTTP/2 allows (RFC 9113, 8.1 to 8.3). What breaks them costs the stream that they
are of, before anybody reads them: whoever stands in between reads them alike.
"""

from __future__ import annotations

import re
from typing import Final

from tandem_loop_grpc.headers import Headers, number

_OF_REQUESTS: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED: Final = (b":method", b":scheme", b":path")
_OF_ANSWERS: Final = frozenset((b":status",))
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+")
"""Printable and no capital, nor a colon."""
_BROKEN: Final = re.compile(rb"[\x00\r\n]")
_STATUS_DIGITS: Final = 3
_LENGTH_DIGITS: Final = 18


class MalformedError(Exception):
    """A request, or an answer, that HTTP/2 does not allow."""


def check_request(headers: Headers) -> None:
    """What begins a call. Raises MalformedError."""
    pseudo = _fields(headers, _OF_REQUESTS)
    for name in _NEEDED:
        if not pseudo.get(name):
            raise MalformedError(f"a request without {name.decode()}")


def check_answer(headers: Headers) -> None:
    """What begins an answer. Raises MalformedError."""
    if number(_fields(headers, _OF_ANSWERS).get(b":status", b""), _STATUS_DIGITS) is None:
        raise MalformedError("an answer without a status")


def check_trailers(headers: Headers) -> None:
    """What ends a request or an answer. Raises MalformedError."""
    _fields(headers, frozenset())


def content_length(headers: Headers) -> int | None:
    """Bytes of DATA that are said to come; None: that is not said. Raises MalformedError."""
    said = {value for name, value in headers if name == b"content-length"}
    if not said:
        return None
    length = number(said.pop(), _LENGTH_DIGITS)
    if length is None or said:
        raise MalformedError("a content-length that is none")
    return length


def _fields(headers: Headers, allowed: frozenset[bytes]) -> dict[bytes, bytes]:
    """The pseudo-headers, all fields checked. Raises MalformedError."""
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        if _BROKEN.search(value):
            raise MalformedError("a header that holds a line's end")
        if not name.startswith(b":"):
            regular = True
            _check_field(name, value)
        elif regular or name in pseudo or name not in allowed:
            raise MalformedError(f"{name.decode('latin-1')!r} is late, repeated or unknown")
        else:
            pseudo[name] = value
    return pseudo


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise MalformedError("a name that no header may have")
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        raise MalformedError(f"{name.decode('latin-1')!r} is not of a request")
