"""The pages of an admin port about requests, as JSON: one request by its trace id, and lists."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from http import HTTPStatus
from itertools import accumulate
from typing import Any

import msgspec

from tandem import ids
from tandem.admin import Document
from tandem.story_book import EndedStory, StoryBook

MAX_ANSWER_BYTES = 1024 * 1024
"""What stories take of one answer; the first is told whatever it takes."""
MOST_LISTED = 50
"""Requests of each list."""
_LISTED = ("trace_id", "outcome", "seconds", "delay", "model", "tenant")


def request(trace_id: str, still_open: Iterable[Any], book: StoryBook[Any] | None) -> Document:
    """The stories of a trace id, the latest first: open ones, then those of the book. 400: it is no
    trace id; 404: nobody knows of it.
    """
    if not ids.TRACE_ID.fullmatch(trace_id):
        text = "a trace id is 32 lower-case hex digits; /debug/requests lists some"
        return _error(HTTPStatus.BAD_REQUEST, "invalid_trace_id", text)
    known = [
        *((None, story) for story in still_open),
        *(book.of(trace_id) if book is not None else ()),
    ]
    if not known:
        text = "no open request has that trace id here, and none is remembered"
        return _error(HTTPStatus.NOT_FOUND, "unknown_trace_id", text)
    told = [
        msgspec.json.encode(
            {"ended_seconds_ago": None if ago is None else round(ago, 3), "story": story}
        )
        for ago, story in known
    ]
    shown = _first_that_fit([len(each) for each in told])
    answer = {
        "trace_id": trace_id,
        "requests": [msgspec.Raw(each) for each in told[:shown]],
        "left_out": len(told) - shown,
    }
    return Document(HTTPStatus.OK, msgspec.json.encode(answer))


def requests(book: StoryBook[Any] | None) -> Document:
    """The requests that ended last, and those with the longest delay, each list in its order."""
    lists = {
        "recent": [] if book is None else book.recent(MOST_LISTED),
        "slowest": [] if book is None else book.slowest(MOST_LISTED),
    }
    answer = {name: [_entry(*each) for each in found] for name, found in lists.items()}
    kept = 0 if book is None else book.held[0]
    return Document(HTTPStatus.OK, msgspec.json.encode({"kept": kept, **answer}))


def _entry(ago: float, story: EndedStory) -> dict[str, object]:
    told = {name: getattr(story, name) for name in _LISTED}
    return {**told, "delay": round(story.delay, 3), "ended_seconds_ago": round(ago, 3)}


def _first_that_fit(sizes: list[int]) -> int:
    """How many of the first take no more than an answer may; one always."""
    together = list(accumulate(sizes))
    return max(1, bisect_right(together, MAX_ANSWER_BYTES))


def _error(status: HTTPStatus, code: str, message: str) -> Document:
    return Document(status, msgspec.json.encode({"error": {"code": code, "message": message}}))
