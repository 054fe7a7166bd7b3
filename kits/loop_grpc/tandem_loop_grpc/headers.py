"""What gRPC says in HTTP/2's headers and trailers (gRPC's PROTOCOL-HTTP2.md)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from tandem_loop_grpc.frames import Code

Headers = Sequence[tuple[bytes, bytes]]
Metadata = Sequence[tuple[str, str | bytes]]

MOST_BYTES: Final = 8 * 1024
"""What headers may take that a peer sends at once, as they are sent and as they are counted
(RFC 9113, 6.5.2).
"""
_MOST_DETAILS: Final = 4 * 1024
"""Bytes of a status' message as it is sent."""
_CONTENT: Final = (b"content-type", b"application/grpc")
_BINARY: Final = "-bin"
_PLAIN = "".join(chr(each) for each in range(0x20, 0x7F) if chr(each) != "%")
_SECONDS_OF: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS: Final = 8
_MOST_CONTENT: Final = 100
"""Bytes of a content-type that an error shows."""
_OWN: Final = frozenset(("content-type", "te", "user-agent"))
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_CODES_OF_HTTP: Final = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}
_CODES_OF_RESET: Final = {
    Code.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    Code.CANCEL: grpc.StatusCode.CANCELLED,
    Code.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}

Status = tuple[grpc.StatusCode, str, Metadata]
"""How a call ended: code, message, and what was said beside them."""


def of_request(
    method: str, authority: str, *, secure: bool, timeout: float | None, metadata: Metadata
) -> Headers:
    """The headers that begin a call. `timeout`: seconds that it may take."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https" if secure else b"http"),
        (b":path", method.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        _CONTENT,
        (b"user-agent", b"tandem"),
    ]
    if timeout is not None:
        headers.append((b"grpc-timeout", _timeout(timeout)))
    return [*headers, *_written(metadata)]


def of_response() -> Headers:
    """What comes before the first message of an answer."""
    return [(b":status", b"200"), _CONTENT]


def of_page(http: int) -> Headers:
    """What comes before a sentence for whoever does not speak gRPC; `http`: its status."""
    return [(b":status", b"%d" % http), (b"content-type", b"text/plain")]


def of_status(status: Status) -> Headers:
    """The trailers that end a call."""
    code, message, metadata = status
    trailers = [(b"grpc-status", b"%d" % code.value[0])]
    if message:
        trailers.append((b"grpc-message", _quoted(message)))
    return [*trailers, *_written(metadata)]


def status(headers: Headers) -> Status:
    """The other way round. Without gRPC's own status it is that of HTTP, or UNKNOWN."""
    said = dict(headers)
    if b"grpc-status" not in said:
        return of_http(said)
    code = number(said[b"grpc-status"], _MOST_DIGITS)
    message = unquote(said.get(b"grpc-message", b"").decode("utf-8", "replace"), errors="replace")
    known = grpc.StatusCode.UNKNOWN if code is None else _CODES.get(code, grpc.StatusCode.UNKNOWN)
    return known, message, metadata(headers)


def number(digits: bytes, most: int) -> int | None:
    """A number that a peer wrote, of at most so many digits; None: it is none."""
    return int(digits) if digits.isdigit() and len(digits) <= most else None


def of_http(said: Mapping[bytes, bytes]) -> Status:
    """What an answer that is none of gRPC comes to."""
    http = number(said.get(b":status", b""), _MOST_DIGITS)
    code = _CODES_OF_HTTP.get(http or 0, grpc.StatusCode.UNKNOWN)
    content = said.get(b"content-type", b"").decode("latin-1")[:_MOST_CONTENT]
    return code, f"the answer is none of gRPC: HTTP status {http}, content-type {content!r}", ()


def of_reset(code: int) -> tuple[grpc.StatusCode, str]:
    """What a stream that the peer reset comes to, and HTTP/2's name for why."""
    known = Code(code) if code in Code._value2member_map_ else Code.INTERNAL_ERROR
    return _CODES_OF_RESET.get(known, grpc.StatusCode.INTERNAL), known.name


def is_grpc(headers: Headers) -> bool:
    """Whether they begin a call, or an answer, of gRPC."""
    return dict(headers).get(b"content-type", b"").startswith(b"application/grpc")


def has_status(headers: Headers) -> bool:
    """Whether they are an answer of gRPC that is over at once."""
    return any(name == b"grpc-status" for name, _ in headers)


def is_interim(headers: Headers) -> bool:
    """Whether they only say that the answer is to come."""
    return dict(headers).get(b":status", b"").startswith(b"1")


def refusal(headers: Headers) -> tuple[int, str]:
    """HTTP's status for a request that is none of gRPC, and why; 0: it is one."""
    said = dict(headers)
    if said.get(b":method") != b"POST":
        return 405, "a call of gRPC is a POST"
    return (0, "") if is_grpc(headers) else (415, "the request is no call of gRPC")


def metadata(headers: Headers) -> Metadata:
    """What the peer says beside what gRPC itself does. Values that are no text, or no base64 where
    their names say so, are left out.
    """
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        key = name.decode("latin-1")
        if key.startswith((":", "grpc-")) or key in _OWN:
            continue
        try:
            found.append((key, _read(key, value)))
        except (UnicodeDecodeError, binascii.Error):
            continue
    return found


def timeout(headers: Headers) -> float | None:
    """Seconds that a call may take; None: it does not say. Raises ValueError."""
    said = dict(headers).get(b"grpc-timeout")
    if said is None:
        return None
    count, unit = number(said[:-1], _MOST_DIGITS), said[-1:].decode("latin-1")
    if count is None or unit not in _SECONDS_OF:
        raise ValueError("a grpc-timeout that is none")
    return count * _SECONDS_OF[unit]


def _timeout(seconds: float) -> bytes:
    """In the finest unit that has enough digits, and at least one of it."""
    for unit in "um":
        count = max(1, round(seconds / _SECONDS_OF[unit]))
        if count < 10**_MOST_DIGITS:
            return b"%d%s" % (count, unit.encode())
    return b"%dS" % min(round(seconds), 10**_MOST_DIGITS - 1)


def _written(metadata: Metadata) -> Iterable[tuple[bytes, bytes]]:
    for key, value in metadata:
        if key.endswith(_BINARY):
            plain = value if isinstance(value, bytes) else value.encode()
            yield key.encode(), base64.b64encode(plain).rstrip(b"=")
        else:
            yield key.encode(), value if isinstance(value, bytes) else value.encode()


def _read(key: str, value: bytes) -> str | bytes:
    if key.endswith(_BINARY):
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    return value.decode("ascii")


def _quoted(message: str) -> bytes:
    """A status message percent-encoded, cut at the bound."""
    quoted = quote(message, safe=_PLAIN, errors="replace")
    while len(quoted) > _MOST_DETAILS:
        message = message[: len(message) * _MOST_DETAILS // len(quoted)]
        quoted = quote(message, safe=_PLAIN, errors="replace")
    return quoted.encode()
