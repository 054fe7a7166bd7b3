"""Which bytes are one request, and which are none: however they are cut, and whatever stands behind
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from one_case import one_case

from tandem.errors import RequestError
from tandem_frontend.http.parsing import RequestParser

LIMIT = 2000
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Read:
    """A request as the application would see it."""

    line: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keep_alive: bool = True
    complete: bool = False


class Recorder:
    """Reads bytes as a connection does, with nothing in between."""

    def __init__(self) -> None:
        self.read: list[Read] = []
        self.parser = RequestParser(self, max_header_bytes=LIMIT)

    def on_message_begin(self) -> None:
        self.read.append(Read())

    def on_url(self, url: bytes) -> None:
        self.read[-1].line += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.read[-1].headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        now, parser = self.read[-1], self.parser
        now.line = parser.get_method() + b" " + now.line + b" " + parser.get_http_version().encode()
        now.keep_alive = parser.should_keep_alive()
        assert parser.should_upgrade() is False

    def on_body(self, body: bytes) -> None:
        assert not self.read[-1].complete
        self.read[-1].body += body

    def on_message_complete(self) -> None:
        self.read[-1].complete = True

    def receive(self, pieces: Iterator[bytes]) -> list[Read]:
        for piece in pieces:
            self.parser.receive(piece)
            while self.parser.unread:
                self.parser.read()
        return self.read


def cuts(sent: bytes) -> Iterator[list[bytes]]:
    """In one piece, in two at every byte, and byte by byte."""
    yield [sent]
    yield [sent[at : at + 1] for at in range(len(sent))]
    for at in range(1, len(sent)):
        yield [sent[:at], sent[at:]]


def post(*headers: bytes, body: bytes = b"", line: bytes = b"POST /a HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: x", *headers, b"", body))


CHUNKED = b"Transfer-Encoding: chunked"
HELLO_CHUNKED = b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
HTTP2_SETTINGS = b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"

ONE_REQUEST: dict[str, tuple[bytes, bytes]] = {
    "no body": (post(), b""),
    "a body": (post(b"Content-Length: 5", body=b"hello"), b"hello"),
    "a chunked body": (post(CHUNKED, body=HELLO_CHUNKED), b"hello"),
    "in capitals": (
        post(b"TRANSFER-ENCODING: CHUNKED", body=HELLO_CHUNKED),
        b"hello",
    ),
    "a body that looks like a request": (post(b"Content-Length: 29", body=NEXT[:29]), NEXT[:29]),
    "chunks that hold blank lines": (
        post(CHUNKED, body=b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n"),
        b"\r\n" * 4,
    ),
    "trailers": (post(CHUNKED, body=HELLO_CHUNKED[:-2] + b"Host: y\r\nA: b\r\n\r\n"), b"hello"),
    "an extension of a chunk": (post(CHUNKED, body=b"5;a=b\r\nhello\r\n0\r\n\r\n"), b"hello"),
    "a blank line before it": (b"\r\n" + post(), b""),
    "HTTP/1.0": (post(b"Content-Length: 5", body=b"hello", line=b"POST /a HTTP/1.0"), b"hello"),
    "HTTP/1.0 without a host": (b"POST /a HTTP/1.0\r\n\r\n", b""),
    "Expect": (post(b"Expect: 100-continue", b"Content-Length: 5", body=b"hello"), b"hello"),
}
UPGRADES: dict[str, tuple[bytes, ...]] = {
    "h2c": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", HTTP2_SETTINGS),
    "websocket": (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    "TLS": (b"Connection: Upgrade", b"Upgrade: TLS/1.2"),
    "anything": (b"Connection: upgrade", b"Upgrade: x/9"),
    "several": (b"Connection: Upgrade", b"Upgrade: a, b", b"Upgrade: h2c"),
    "in capitals": (b"CONNECTION: UPGRADE", b"UPGRADE: H2C"),
    "an empty one": (b"Connection: Upgrade", b"Upgrade:"),
    "behind keep-alive": (b"Connection: keep-alive, Upgrade", b"Upgrade: h2c"),
    "before keep-alive": (b"Connection: Upgrade, keep-alive", b"Upgrade: h2c"),
    "by a proxy's header": (b"Proxy-Connection: upgrade", b"Upgrade: h2c"),
    "without Connection": (b"Upgrade: h2c",),
    "the header first": (b"Upgrade: h2c", b"Connection: Upgrade"),
    "with two of Connection": (b"Connection: keep-alive", b"Connection: Upgrade", b"Upgrade: h2c"),
}
BODIES = {
    "nothing": ((), b"", b""),
    "a length": ((b"Content-Length: 5",), b"hello", b"hello"),
    "chunks": ((CHUNKED,), HELLO_CHUNKED, b"hello"),
    "a request in it": ((b"Content-Length: %d" % len(NEXT),), NEXT, NEXT),
}


@one_case("name", ONE_REQUEST)
def test_a_request_is_one_request_however_it_is_cut(name: str) -> None:
    sent, body = ONE_REQUEST[name]
    for pieces in cuts(sent):
        (read,) = Recorder().receive(iter(pieces))
        assert read.complete
        assert read.body == body
        assert read.line.startswith(b"POST /a 1.")
        assert (b"a", b"b") not in read.headers, "a trailer became a header"


@pytest.mark.promise("S6-135")
@one_case("upgrade", UPGRADES)
@one_case("body", BODIES)
def test_an_upgrade_is_ignored_and_the_body_is_a_body(upgrade: str, body: str) -> None:
    framing, sent_body, meant = BODIES[body]
    for headers in ((*UPGRADES[upgrade], *framing), (*framing, *UPGRADES[upgrade])):
        for pieces in cuts(post(*headers, body=sent_body) + NEXT):
            first, second = Recorder().receive(iter(pieces))
            assert (first.line, first.body, first.complete) == (b"POST /a 1.1", meant, True)
            assert (second.line, second.complete) == (b"GET /next 1.1", True)
            assert first.keep_alive


@pytest.mark.promise("S6-135")
def test_two_requests_with_an_upgrade_are_two_requests() -> None:
    one = post(*UPGRADES["h2c"], b"Content-Length: 5", body=b"hello")
    first, second, third = Recorder().receive(iter([one + one + NEXT]))
    assert (first.body, second.body, third.line) == (b"hello", b"hello", b"GET /next 1.1")


@pytest.mark.parametrize(
    "sent",
    [
        post(b"Connection: close"),
        post(b"Connection: Upgrade, close", b"Upgrade: h2c"),
        post(b"Connection: close", b"Content-Length: 5", body=b"hello"),
        post(line=b"POST /a HTTP/1.0"),
        post(b"Connection: Upgrade", b"Upgrade: h2c", line=b"POST /a HTTP/1.0"),
    ],
)
def test_what_follows_a_last_request_is_read_by_nobody(sent: bytes) -> None:
    for pieces in cuts(sent + NEXT):
        (read,) = Recorder().receive(iter(pieces))
        assert not read.keep_alive


NO_REQUEST: dict[str, bytes] = {
    # --- versions ---
    "HTTP/0.9": b"GET /\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2's method": b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n",
    "RTSP": b"GET / RTSP/1.0\r\nHost: x\r\n\r\n",
    "RTSP with a body": b"POST / RTSP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    "ICE": b"SOURCE / ICE/1.0\r\nHost: x\r\n\r\n",
    "a version in lower case": b"GET / http/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    # --- request lines ---
    "a method in lower case": b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an unknown method": b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces behind": b"GET /  HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space at the end": b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    "a tab": b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in the target": b"GET /a\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "eight bits in the target": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare CR before it": b"\rGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare LF before it": b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT with a body": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT to a path": b"CONNECT /live HTTP/1.1\r\nHost: x\r\n\r\n",
    # --- hosts ---
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET / HTTP/1.0\r\nHost: x\r\nhOST: y\r\n\r\n",
    "a list of hosts": b"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "a host with a space": b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
    "a host of another user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    # --- headers ---
    "bare LFs": b"GET / HTTP/1.1\nHost: x\n\n",
    "one bare LF": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a bare LF at the end": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    "a bare CR": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "a bare CR in a value": post(b"A: b\rc"),
    "a NUL in a value": post(b"A: b\0c"),
    "a control in a value": post(b"A: b\x01c"),
    "a folded header": post(b"A: b", b" c"),
    "a folded length": post(b"Content-Length:", b" 5", body=b"hello"),
    "a folded coding": post(b"Transfer-Encoding:", b" chunked", body=HELLO_CHUNKED),
    "a space before a colon": post(b"Content-Length : 5", body=b"hello"),
    "a tab before a colon": post(b"Content-Length\t: 5", body=b"hello"),
    "a space before the first header": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "no colon": post(b"A"),
    "no name": post(b": b"),
    "eight bits in a name": post(b"\xffA: b"),
    # --- framing ---
    "a length and a coding": post(b"Content-Length: 5", CHUNKED, body=HELLO_CHUNKED),
    "a coding and a length": post(CHUNKED, b"Content-Length: 5", body=HELLO_CHUNKED),
    "two lengths": post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"),
    "two equal lengths": post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"),
    "a list of lengths": post(b"Content-Length: 5, 5", body=b"hello"),
    "a signed length": post(b"Content-Length: +5", body=b"hello"),
    "a negative length": post(b"Content-Length: -5", body=b"hello"),
    "a hexadecimal length": post(b"Content-Length: 0x5", body=b"hello"),
    "an empty length": post(b"Content-Length:", body=b"hello"),
    "a length of two": post(b"Content-Length: 5 5", body=b"hello"),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551617"),
    "a length with a vertical tab": post(b"Content-Length: \x0b5", body=b"hello"),
    "no coding": post(b"Transfer-Encoding:", body=HELLO_CHUNKED),
    "identity": post(b"Transfer-Encoding: identity", body=b"hello"),
    "gzip before chunked": post(b"Transfer-Encoding: gzip, chunked", body=HELLO_CHUNKED),
    "gzip after chunked": post(b"Transfer-Encoding: chunked, gzip", body=HELLO_CHUNKED),
    "a comma before chunked": post(b"Transfer-Encoding: ,chunked", body=HELLO_CHUNKED),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=HELLO_CHUNKED),
    "chunked in two headers": post(CHUNKED, CHUNKED, body=HELLO_CHUNKED),
    "nearly chunked": post(b"Transfer-Encoding: xchunked", body=HELLO_CHUNKED),
    "chunked with a parameter": post(b"Transfer-Encoding: chunked;q=1", body=HELLO_CHUNKED),
    "chunked in quotes": post(b'Transfer-Encoding: "chunked"', body=HELLO_CHUNKED),
    "chunked with a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=HELLO_CHUNKED),
    "chunked in HTTP/1.0": post(CHUNKED, body=HELLO_CHUNKED, line=b"POST / HTTP/1.0"),
    "an upgrade with both": post(
        *UPGRADES["h2c"], b"Content-Length: 4", CHUNKED, body=HELLO_CHUNKED
    ),
    # --- chunks ---
    "a chunk with a sign": post(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk with 0x": post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk with an underscore": post(CHUNKED, body=b"0_5\r\nhello\r\n0\r\n\r\n"),
    "a space before a size": post(CHUNKED, body=b" 5\r\nhello\r\n0\r\n\r\n"),
    "a space behind a size": post(CHUNKED, body=b"5 \r\nhello\r\n0\r\n\r\n"),
    "a size beyond 64 bits": post(CHUNKED, body=b"1" + b"0" * 16 + b"\r\n"),
    "no size": post(CHUNKED, body=b"\r\nhello\r\n0\r\n\r\n"),
    "an extension alone": post(CHUNKED, body=b";a\r\nhello\r\n0\r\n\r\n"),
    "an extension that ends in LF": post(CHUNKED, body=b"5;a\nhello\r\n0\r\n\r\n"),
    "an extension with a bare CR": post(CHUNKED, body=b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "an extension with a NUL": post(CHUNKED, body=b"5;\0\r\nhello\r\n0\r\n\r\n"),
    "an extension quoting a line": post(CHUNKED, body=b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n'),
    "a size that ends in LF": post(CHUNKED, body=b"5\nhello\r\n0\r\n\r\n"),
    "a size that ends in CR": post(CHUNKED, body=b"5\rhello\r\n0\r\n\r\n"),
    "a chunk that ends in LF": post(CHUNKED, body=b"5\r\nhello\n0\r\n\r\n"),
    "a chunk that does not end": post(CHUNKED, body=b"5\r\nhello0\r\n\r\n"),
    "a chunk that is too long": post(CHUNKED, body=b"5\r\nhello!!0\r\n\r\n"),
    "a last chunk that ends in LF": post(CHUNKED, body=b"0\r\n\n"),
    "a length in the trailers": post(CHUNKED, body=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a coding in the trailers": post(CHUNKED, body=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a folded trailer": post(CHUNKED, body=b"0\r\nA: b\r\n c\r\n\r\n"),
}


@pytest.mark.promise("S6-134")
@one_case("name", NO_REQUEST)
def test_what_others_might_read_differently_is_refused_however_it_is_cut(name: str) -> None:
    sent = NO_REQUEST[name]
    for pieces in cuts(sent):
        recorder = Recorder()
        with pytest.raises(RequestError) as refused:
            recorder.receive(iter(pieces))
        assert refused.value.http_status == 400
        assert not any(read.complete for read in recorder.read)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * LIMIT,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * LIMIT,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * LIMIT + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * (LIMIT // 6) + b"\r\n",
        b"\r\n" * LIMIT,
        post(CHUNKED, body=b"0" * (LIMIT + 1)),
        post(CHUNKED, body=b"5;a=" + b"a" * LIMIT),
        post(CHUNKED, body=b"0\r\nA: " + b"a" * LIMIT),
        post(CHUNKED, body=b"0\r\n" + b"A: b\r\n" * (LIMIT // 6)),
    ],
    ids=["target", "header", "whole", "headers", "lines", "size", "extension", "trailer", "s"],
)
def test_nothing_is_read_for_long_without_being_a_part_of_a_body(sent: bytes) -> None:
    for pieces in ([sent], [sent[at : at + 1] for at in range(len(sent))]):
        with pytest.raises(RequestError) as refused:
            Recorder().receive(iter(pieces))
        assert refused.value.http_status == 431


def test_heads_and_trailers_within_the_limit_are_read_beside_a_large_body() -> None:
    trailer = b"A: " + b"a" * (LIMIT - 100)
    chunks = b"".join(b"1;a=b\r\nx\r\n" for _ in range(3 * LIMIT))
    (read,) = Recorder().receive(
        iter([post(trailer, CHUNKED, body=chunks + b"0\r\n" + trailer + b"\r\n\r\n")])
    )
    assert read.body == b"x" * 3 * LIMIT
    assert read.complete


@pytest.mark.promise("S6-139")
def test_nothing_behind_a_request_is_looked_at_before_it_is_asked_for() -> None:
    for first in (post(), *(sent for sent, _ in ONE_REQUEST.values())):
        recorder = Recorder()
        if b"HTTP/1.0" in first:
            continue
        recorder.parser.receive(first + b"\0 no request at all")
        while not (recorder.read and recorder.read[-1].complete):
            recorder.parser.read()
        assert recorder.parser.unread == len(b"\0 no request at all")
        assert not recorder.parser.expects_more
