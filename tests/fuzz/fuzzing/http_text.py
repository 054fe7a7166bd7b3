"""Changes to HTTP requests as bytes that keep them requests, most of the time."""

from __future__ import annotations

from random import Random

from .json_values import spoil_json
from .values import spoil_bytes

_HEAD_END = b"\r\n\r\n"
_METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"get", b"", b"G\0T", b"PUT")
_TARGETS = (
    *(b"/", b"*", b"", b"//", b"/live", b"/ready", b"/docs", b"/openapi.json", b"/v1/models"),
    *(b"/v1/models/%00", b"/v1/models/" + b"x" * 500, b"http://a/live", b"/live?a=b#c"),
    *(b"/v1/chat/completions", b"/v1/completions", b"/tokenize", b"/detokenize", b"/%2e%2e"),
    *(b"/\xff", b"/v1/models/\xc3\xa9", b"/live HTTP/1.1", b"example.com:80"),
)
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"")
_HEADERS = (
    *(b"Host: a", b"Host:", b"Host: a,b", b"Host: \xff", b"host : a", b"X", b": a", b"a: \0b"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5, 5"),
    *(b"Content-Length: 99999999999999999999", b"Content-Length: 0x5", b"Content-Length: +5"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding:"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked", b"TE: trailers"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade\r\nUpgrade: h2c"),
    *(
        b"Upgrade: websocket",
        b"HTTP2-Settings: AAMAAABk",
        b"Connection: \0",
        b"Expect: 100-continue",
    ),
    *(b"Expect: 200-ok", b"Content-Type: text/plain", b"Content-Encoding: gzip", b" folded: yes"),
    *(
        b"Authorization: Bearer k",
        b"Authorization: \xff",
        b"X-Request-Id: \xff\xfe",
        b"Origin: null",
    ),
    *(b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"traceparent: \xff"),
    *(b"X-Request-Id: " + b"r" * 500, b"Access-Control-Request-Method: POST", b"Trailer: Host"),
    *(b"x: " + b"y" * 9_000, b"Cookie: " + b"a=b;" * 200),
)
_CHUNK_SIZES = (b"0", b"1", b"5", b"-1", b"0x5", b"FFFFFFFFFFFFFFFF", b"5;a=b", b"5 ", b"", b"G")


def spoil_http(data: bytes, random: Random) -> bytes:
    """Change the line, the headers, the framing or the body of a request, or what is around it."""
    head, end, body = data.partition(_HEAD_END)
    match random.randrange(9):
        case 0:
            return spoil_bytes(data, random)
        case 1:
            return _spoil_line(head, random) + end + body
        case 2 | 3:
            return _spoil_headers(head, random) + end + body
        case 4:
            return head + end + _chunked(body, random)
        case 5:
            return data + data if random.randrange(2) else data + body
        case 6:
            return head.replace(b"\r\n", random.choice((b"\n", b"\r", b"\r\r\n"))) + end + body
    return _with_body(head, spoil_json(body, random), random) if body else data + _HEAD_END


def _spoil_line(head: bytes, random: Random) -> bytes:
    line, end, rest = head.partition(b"\r\n")
    parts = [*line.split(b" "), b"", b""][:3]
    place = random.randrange(3)
    parts[place] = random.choice((_METHODS, _TARGETS, _VERSIONS)[place])
    return random.choice((b" ", b" ", b" ", b"  ", b"\t")).join(parts) + end + rest


def _spoil_headers(head: bytes, random: Random) -> bytes:
    line, *headers = head.split(b"\r\n")
    at = random.randrange(len(headers) + 1)
    match random.randrange(4):
        case 0 if headers:
            del headers[at % len(headers)]
        case 1 if headers:
            headers.insert(at, headers[at % len(headers)])
        case 2 if headers:
            headers[at % len(headers)] = spoil_bytes(headers[at % len(headers)], random)
        case _:
            headers.insert(at, random.choice(_HEADERS))
    return b"\r\n".join((line, *headers))


def _with_body(head: bytes, body: bytes, random: Random) -> bytes:
    """With a length that is true, most of the time."""
    length = len(body) if random.randrange(8) else len(body) + random.randint(-3, 3)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join((*lines, b"content-length: %d" % length)) + _HEAD_END + body


def _chunked(body: bytes, random: Random) -> bytes:
    """Chunks without the header that says so, unless a change before has added it."""
    parts = []
    while body:
        size = random.randint(1, max(1, len(body)))
        said = b"%x" % size if random.randrange(8) else random.choice(_CHUNK_SIZES)
        parts.append(said + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    last = random.choice(
        (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nHost: a\r\n\r\n", b"0\r\n", b"00\r\n\r\n")
    )
    return b"".join(parts) + last
