"""From a connection's bytes to HTTP requests, one at a time and never two ways.

llhttp reads the messages, and refuses nearly all that another reader could take differently. Here
is what it leaves open: which versions, hosts and transfer codings a request may have; that an
`Upgrade` is ignored, as RFC 9110, 7.8 allows; that nothing behind a request is read before that is
asked for; and that nothing is read for long without being understood.
"""

from __future__ import annotations

import re
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandem.errors import InvalidRequestError, TandemError
from tandem_frontend.http.errors import HeadTooLargeError

_BLANK_LINE = b"\r\n\r\n"
"""Ends every head, and every chunked body."""
_STEP_BYTES = 16 * 1024
_BODY_STEP_BYTES = 64 * 1024
_REQUEST_LINE = re.compile(rb"(?:\r\n)*[A-Z-]+ [!\"$-~]+ HTTP/1\.[01]\r\n")
_UPGRADE = re.compile(rb"^upgrade:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")


class RequestParser:
    """Reads the requests of one connection. After a failure nothing more can be read of it."""

    def __init__(self, requests: HttpToolsProtocol, *, max_header_bytes: int) -> None:
        """`requests` is told what is read. `max_header_bytes`: of a request line and its headers;
        also of trailers, and of whatever else is read of a request beside its body.
        """
        self._requests = requests
        self._limit = max_header_bytes
        self._unread = bytearray()
        self._method, self._version, self._keep_alive = b"", "", True
        self._last = False
        """Whether the client said that no further request follows."""
        self._refusal: TandemError | None = None
        self._llhttp: Any
        self._begin()

    # --- the connection's side ---

    @property
    def unread(self) -> int:
        return len(self._unread)

    @property
    def kept(self) -> int:
        """Bytes that are kept: those unread, and a head that is not whole."""
        return len(self._unread) + (0 if self._headers_read else len(self._head))

    def receive(self, data: bytes) -> None:
        self._unread += data

    def read(self) -> int:
        """Read up to a request's end, or less; returns the bytes. Raises RequestError."""
        if self._last:  # what follows a last request is no one's
            self._unread.clear()
        piece = self._next_piece()
        if piece:
            self._feed(piece)
        return len(piece)

    def stop(self) -> None:
        """Let go of llhttp, which holds this object too."""
        self._llhttp = None
        self._unread.clear()

    # --- uvicorn's side, in its callbacks ---

    def get_method(self) -> bytes:
        return self._method

    def get_http_version(self) -> str:
        return self._version

    def should_keep_alive(self) -> bool:
        return self._keep_alive

    def should_upgrade(self) -> bool:
        return False

    # --- llhttp's callbacks ---

    def on_message_begin(self) -> None:
        self.expects_more = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headers_read:  # else it is a trailer, which means nothing here
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        llhttp = self._llhttp
        self._method = llhttp.get_method()
        self._version = llhttp.get_http_version()
        self._keep_alive = llhttp.should_keep_alive()
        self._refusal = self._check_head()
        if self._refusal is not None:
            raise self._refusal
        self._headers_read = True

    def on_body(self, body: bytes) -> None:
        self._unframed = 0
        self._body_left -= len(body)
        self._requests.on_body(body)

    def on_message_complete(self) -> None:
        self._complete = True

    # --- inside ---

    def _begin(self) -> None:
        """The next bytes are of a new request."""
        self._llhttp = httptools.HttpRequestParser(self)
        self._head = bytearray()
        """All bytes up to the end of the head."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._line_read = self._headers_read = self._headers_told = self._complete = False
        self._refusal = None
        self._cut_at_end = b""
        """The last bytes that llhttp was given: they may begin a blank line."""
        self._body_left = 0
        """Bytes of a body whose length was said."""
        self._unframed = 0
        """Bytes read since the last of the body: all others are kept, or skipped, by llhttp."""
        self.expects_more = False
        """A part of a request has been read, and not all of it."""

    def _next_piece(self) -> bytes:
        """Never more than one request: it ends with a blank line, or its body's length is known."""
        if self._body_left > 0:
            end = min(self._body_left, _BODY_STEP_BYTES)
        else:
            seen = len(self._cut_at_end)
            window = self._cut_at_end + self._unread[:_STEP_BYTES]
            found = window.find(_BLANK_LINE)
            end = _STEP_BYTES if found < 0 else found + len(_BLANK_LINE) - seen
            self._cut_at_end = window[-3:] if found < 0 else b""
        piece = bytes(self._unread[:end])
        del self._unread[:end]
        return piece

    def _feed(self, piece: bytes) -> None:
        if not self._headers_read:
            self._head += piece
            self._check_line()
        self._unframed += len(piece)
        try:
            self._give(piece)
        except httptools.HttpParserError as error:
            raise self._refusal or _no_http(error) from None
        if self._unframed > self._limit:
            raise HeadTooLargeError(self._limit)
        if self._headers_read and not self._headers_told:
            self._tell_head()
        if self._complete:
            self._last = not self._keep_alive
            self._begin()
            self._requests.on_message_complete()

    def _tell_head(self) -> None:
        self._headers_told = True
        self._unframed = 0
        requests = self._requests
        requests.on_message_begin()
        requests.on_url(self._url)
        for name, value in self._headers:
            requests.on_header(name, value)
        requests.on_headers_complete()

    def _give(self, piece: bytes) -> None:
        """llhttp stops behind the head of a request that asks for an upgrade, as if what follows
        were of another protocol. It then reads the same head without that.
        """
        try:
            self._llhttp.feed_data(piece)
        except httptools.HttpParserUpgrade:
            head = _UPGRADE.sub(b"", bytes(self._head))
            self._begin()
            self._head += head
            self._llhttp.feed_data(head)

    def _check_line(self) -> None:
        """As soon as it is there: a client of another protocol may wait for an answer to it."""
        if not self._line_read and b"\n" in self._head.lstrip(b"\r\n"):
            self._line_read = True
            if not _REQUEST_LINE.match(self._head):
                raise InvalidRequestError("The request line must be of HTTP/1.0 or HTTP/1.1")

    def _check_head(self) -> InvalidRequestError | None:
        """What llhttp takes, and a reader before or behind this one may take differently."""
        if self._method == b"CONNECT" or not _is_target(self._url):
            return InvalidRequestError("The request's target must be a path of this server")
        modern = self._version == "1.1"
        hosts = self._values(b"host")
        if len(hosts) > 1 or (modern and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            return InvalidRequestError("The request must name one host")
        codings = self._values(b"transfer-encoding")
        if codings and not (modern and [each.lower() for each in codings] == [b"chunked"]):
            return InvalidRequestError("The only Transfer-Encoding is `chunked`, in HTTP/1.1")
        for length in self._values(b"content-length"):
            self._body_left = int(length)
        return None

    def _values(self, name: bytes) -> list[bytes]:
        return [value.strip() for key, value in self._headers if key.lower() == name]


def _is_target(url: bytes) -> bool:
    try:
        return bool(httptools.parse_url(url).path)
    except httptools.HttpParserInvalidURLError:
        return False


def _no_http(error: httptools.HttpParserError) -> InvalidRequestError:
    """In llhttp's own words, which hold nothing of the request."""
    return InvalidRequestError(f"The request is no HTTP/1.1: {error}")
