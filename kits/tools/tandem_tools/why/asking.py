"""Where stories are found: at the admin ports of routers and frontends, and in their logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandem.cli.client import ApiError, Client
from tandem.errors import ConfigError
from tandem_frontend.http.call_story import CallStory
from tandem_router.core.story import Story
from tandem_tools.side_by_side import collect, start
from tandem_tools.why.evidence import Evidence, joined

T = TypeVar("T")
ANSWER_SECONDS = 3.0
"""Time that each asked component has to answer."""
MAX_LINE_BYTES = 1 << 20
_MARK = b"request ended"
_CONSOLE = b" story={"


class ListedRequest(msgspec.Struct, frozen=True):
    """A request, as /debug/requests lists it."""

    trace_id: str
    delay: float
    ended_seconds_ago: float


class _List(msgspec.Struct, frozen=True):
    recent: list[ListedRequest]
    slowest: list[ListedRequest]


class _Line(msgspec.Struct, frozen=True):
    story: str = ""


class AdminPorts:
    """Admin ports of routers and frontends, asked side by side."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.silent: dict[str, str] = {}
        """Components that did not answer, and why. They are not asked again."""

    def of(self, trace_id: str) -> Evidence | None:
        """The evidence about a request; None: no component knows the request."""
        return self.all((trace_id,)).get(trace_id)

    def all(self, trace_ids: Iterable[str]) -> dict[str, Evidence]:
        """The evidence about several requests."""
        told: list[Any] = []
        for trace_id in trace_ids:
            for answer in self._ask(f"/debug/requests/{trace_id}", unknown={"requests": []}):
                told += (each["story"] for each in answer["requests"])
        return _evidence(told)

    def listed(self) -> list[ListedRequest]:
        """The requests that any component lists, each once, with its longest delay."""
        found: dict[str, ListedRequest] = {}
        for answer in self._ask("/debug/requests", unknown=None):
            lists = _converted(answer, _List)
            for each in (*lists.recent, *lists.slowest):
                known = found.get(each.trace_id)
                if known is None or each.delay > known.delay:
                    found[each.trace_id] = each
        return list(found.values())

    def _ask(self, path: str, *, unknown: Any) -> list[Any]:
        """The answers. `unknown`: taken for the answer 404, unless it is None."""

        def ask(address: str) -> Any:
            try:
                return Client(address, timeout_seconds=ANSWER_SECONDS).get(path)
            except ApiError as error:
                if error.status == 404 and unknown is not None:
                    return unknown
                raise

        until = time.monotonic() + ANSWER_SECONDS
        asked = (each for each in self._addresses if each not in self.silent)
        answers = collect(start(asked, ask), until)
        for address, answer in answers.items():
            if isinstance(answer, ApiError):
                self.silent[address] = str(answer)
        return [each for each in answers.values() if not isinstance(each, ApiError)]


def from_logs(paths: Iterable[Path], wanted: Callable[[str], bool]) -> dict[str, Evidence]:
    """What logs tell of the requests whose trace ids are wanted. `-` is standard input. Raises
    ConfigError for a file that cannot be read.
    """
    told: list[Any] = []
    for path in paths:
        told += (story for story in _stories(path) if wanted(story.get("trace_id", "")))
    return _evidence(told)


def _stories(path: Path) -> Iterator[dict[str, Any]]:
    """The stories in a log, of either format; other lines, and lines that are cut, are passed."""
    with ExitStack() as stack:
        try:
            lines = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        while line := lines.readline(MAX_LINE_BYTES):
            if _MARK not in line:
                continue
            story = _story_of(line.strip())
            if story is not None:
                yield story


def _story_of(line: bytes) -> dict[str, Any] | None:
    try:
        if line.startswith(b"{"):
            text = msgspec.json.decode(line, type=_Line).story.encode()
        else:
            _, brace, rest = line.partition(_CONSOLE)
            text = b"{" + rest if brace else b""
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _evidence(told: Iterable[Any]) -> dict[str, Evidence]:
    calls, stories = [], []
    for each in told:
        if "endpoint" in each:
            calls.append(_converted(each, CallStory))
        else:
            stories.append(_converted(each, Story))
    return joined(calls, stories)


def _converted(told: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise ApiError(f"a story is not that of a component of this version: {error}") from error
