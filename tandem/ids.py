"""Numbers and names that identify things: trace ids, rooms, and each process's own request ids."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable

TRACE_ID = re.compile(r"[0-9a-f]{32}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def new_trace_id() -> str:
    """A fresh W3C trace id: 32 hex digits, never all zero."""
    return secrets.token_hex(16)


def trace_id_from(traceparent: str | None) -> str | None:
    """The trace id of a W3C `traceparent` header, or None where the header is absent or malformed.

    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None or match[1] == "0" * 32 or traceparent is None or traceparent[:2] == "ff":
        return None
    return match[1]


def new_room() -> int:
    """A room number: random and never 0, which SGLang reads as "metadata has not landed". Fits a
    signed 64-bit integer.
    """
    return secrets.randbits(63) | 1


def counter() -> Callable[[], int]:
    """A source of integers from 1 that are unique for the life of the process."""
    return itertools.count(1).__next__
