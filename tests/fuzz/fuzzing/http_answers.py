"""Reads what a server wrote, as strictly as a client may: each answer is whole and framed once."""

from __future__ import annotations

import re

from .target import FoundError

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*$")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")


def statuses(written: bytes, *, cut: bool) -> list[int]:
    """Of all answers in order. `cut`: the client has gone, so the last one may be a part.

    Raises FoundError where bytes are no answer.
    """
    found = []
    while written:
        head, end, rest = written.partition(b"\r\n\r\n")
        match = _STATUS.match(head.partition(b"\r\n")[0])
        if match is None:
            raise FoundError("fault", f"no status line: {head[:60]!r}")
        if not end:
            return _ended(found, cut)
        found.append(int(match[1]))
        body_end = _body_end(head, rest, found[-1])
        if body_end is None:
            return _ended(found, cut)
        written = rest[body_end:]
    return found


def _ended(found: list[int], cut: bool) -> list[int]:
    if not cut:
        raise FoundError("fault", "the last answer is not whole")
    return found


def _body_end(head: bytes, rest: bytes, status: int) -> int | None:
    """Where the answer's body ends; None: it is not whole."""
    length, chunked = _LENGTH.findall(head), _CHUNKED.search(head)
    if len(length) + bool(chunked) > 1:
        raise FoundError("fault", "an answer says its length twice")
    if status == 204 or status < 200:
        return 0
    if chunked:
        return _chunks_end(rest)
    if not length:
        raise FoundError("fault", f"an answer of status {status} says no length")
    size = int(length[0])
    return size if len(rest) >= size else None


def _chunks_end(rest: bytes) -> int | None:
    at = 0
    while True:
        line = rest.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(rest[at:line], 16)
        at = line + 2 + size + 2
        if len(rest) < at:
            return None
        if rest[at - 2 : at] != b"\r\n":
            raise FoundError("fault", "a chunk does not end where it says")
        if not size:
            return at
