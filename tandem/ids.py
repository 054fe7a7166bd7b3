"""Numbers and names that identify things: trace ids, rooms, and each process's own request ids."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from typing import NamedTuple

TRACE_ID = re.compile(r"[0-9a-f]{32}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 0x01


class Traceparent(NamedTuple):
    """What a caller says of its own span."""

    trace_id: str
    span_id: int
    sampled: bool


def new_trace_id() -> str:
    """A fresh W3C trace id: 32 hex digits, never all zero."""
    return secrets.token_hex(16)


def new_span_id() -> int:
    """A fresh W3C span id: random and never 0. Fits a signed 64-bit integer, so that a few more can
    be counted from it.
    """
    return secrets.randbits(63) | 1


def traceparent_from(header: str | None) -> Traceparent | None:
    """A W3C `traceparent` header, or None where it is absent or malformed.

    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    match = _TRACEPARENT.fullmatch(header or "")
    if match is None:
        return None
    version, trace_id, span_id, flags = match.groups()
    if version == "ff" or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Traceparent(trace_id, int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def new_room() -> int:
    """A room number: random and never 0, which SGLang reads as "metadata has not landed". Fits a
    signed 64-bit integer. Every remainder is as likely, because data-parallel ranks of prefill
    share rooms by it.
    """
    return 1 + secrets.randbelow(2**63 - 1)


def counter() -> Callable[[], int]:
    """A source of integers from 1 that are unique for the life of the process."""
    return itertools.count(1).__next__
