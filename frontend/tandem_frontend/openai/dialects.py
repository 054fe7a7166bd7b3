"""The ways in which clients ask for answers, and are given them: each says how its own shapes stand
for those of chats, which all else knows alone. Two are OpenAI's chats and completions; packages
offer more as entry points of the group `tandem.dialects`, each of which names a tuple of Dialects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from tandem.errors import LoadError, RequestError, TandemError
from tandem.upstream.answer import ChoiceFinish, Row
from tandem.upstream.request_state import RequestState
from tandem.usercode.loader import entry_points, load_entry_point
from tandem_frontend.http import errors as http_errors
from tandem_frontend.openai import answers, shapes
from tandem_frontend.openai.answers import Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.decoding import Body
from tandem_frontend.openai.parsed import Parsed
from tandem_frontend.openai.requests import (
    CHAT_BODY,
    COMPLETION_BODY,
    ChatRequest,
    CompletionRequest,
)
from tandem_frontend.openai.shapes import ChunkShape
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.openai.writers import BodyWriter, CountingWriter, EventWriter

GROUP = "tandem.dialects"
Generating: TypeAlias = ChatRequest | CompletionRequest


class Events(Protocol):
    """Rows to the events of a stream."""

    @property
    def parsed(self) -> Parsed: ...

    def opening(self) -> Iterator[bytes]: ...

    def row(self, row: Row) -> bytes: ...

    def ending(self, ending: ChoiceFinish) -> bytes: ...

    def closing(self, usage: Usage, report: Report | None) -> bytes: ...

    def failing(self, error: TandemError) -> bytes:
        """The last event of a stream that has begun and cannot go on."""


class Collector(Protocol):
    """Rows to the one body of an answer."""

    @property
    def parsed(self) -> Parsed: ...

    def row(self, row: Row) -> None: ...

    def ending(self, ending: ChoiceFinish) -> None: ...

    def pieces(self, usage: Usage, report: Report | None) -> Iterator[bytes]: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class ErrorShape:
    """How clients are told of errors."""

    schema: type[msgspec.Struct]
    """An error's body, as the API's description has it."""
    status: Callable[[TandemError], int]
    """The HTTP status of an error."""
    body: Callable[[TandemError, str], bytes]
    """An error as JSON; the text is the trace id of its request."""
    request_id_header: bytes = b""
    """The header of all answers that says the trace id; empty: none but Tandem's own."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Counting:
    """How clients of a dialect ask how many tokens a prompt has."""

    endpoint: str
    path: str
    summary: str
    requests: Body[Any]
    prompt: Callable[[Any], ChatRequest]
    """The chat that has this prompt. Raises RequestError, as `Dialect.generating` does."""
    answer: type[msgspec.Struct]
    """Made of the number."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialect:
    """How requests are read, and how answers are written."""

    endpoint: str
    """As metrics call its path."""
    path: str
    summary: str
    """The path's purpose, for the API's description."""
    operation: str
    """OpenTelemetry's name for it."""
    requests: Body[Any]
    generating: Callable[[Any], Generating]
    """The chat or completion that a request stands for. Raises RequestError with its `param`."""
    repeated: Callable[[Any], bytes]
    """What an answer says again of its request: members of an object as JSON, or nothing."""
    names: Mapping[str, str]
    """What its clients call a field of chats, where that is something else."""
    events: Callable[[ModelTokenizer, Asked, RequestState], Events]
    body: Callable[[ModelTokenizer, Asked], Collector]
    answer: type[msgspec.Struct]
    """The body of an answer, as the API's description has it."""
    errors: ErrorShape
    counting: Counting | None = None
    below: str = ""
    """The answer to requests below its path; empty: that of any unknown path."""

    def name_of(self, field: str) -> str:
        """What its clients call a field of chats, or one inside of it."""
        root = field.partition(".")[0].partition("[")[0]
        return self.names.get(root, field)

    def name(self, error: RequestError) -> None:
        """Have an error name its field as clients of this dialect do."""
        error.param = self.name_of(error.param)
        for field, name in self.names.items():
            error.message = error.message.replace(f"`{field}`", f"`{name}`")


def nothing(request: object) -> bytes:
    """Where an answer says nothing again of its request."""
    return b""


def _events(shape: ChunkShape) -> Callable[[ModelTokenizer, Asked, RequestState], Events]:
    def events(tokenizer: ModelTokenizer, asked: Asked, running: RequestState) -> Events:
        written = EventWriter(shape, tokenizer, asked)
        if asked.want_running_usage:
            return CountingWriter(written, asked, running.tokens_of)
        return written

    return events


OPENAI_ERRORS = ErrorShape(
    schema=answers.ErrorBody,
    status=lambda error: error.http_status,
    body=lambda error, _: http_errors.body(error),
)
CHAT = Dialect(
    endpoint="chat_completions",
    path="/v1/chat/completions",
    summary="Answer a chat, as one body or as server-sent events",
    operation="chat",
    requests=CHAT_BODY,
    generating=lambda request: request,
    repeated=nothing,
    names={},
    events=_events(shapes.CHAT),
    body=functools.partial(BodyWriter, shapes.CHAT),
    answer=answers.ChatCompletion,
    errors=OPENAI_ERRORS,
)
COMPLETION = Dialect(
    endpoint="completions",
    path="/v1/completions",
    summary="Continue prompts, as one body or as server-sent events",
    operation="text_completion",
    requests=COMPLETION_BODY,
    generating=lambda request: request,
    repeated=nothing,
    names={},
    events=_events(shapes.COMPLETION),
    body=functools.partial(BodyWriter, shapes.COMPLETION),
    answer=answers.Completion,
    errors=OPENAI_ERRORS,
)


@functools.cache
def spoken() -> tuple[Dialect, ...]:
    """All dialects of this installation. Raises LoadError, also for a path offered twice."""
    names = sorted(entry_points(GROUP).names)
    offered = (each for name in names for each in load_entry_point(GROUP, name))
    dialects = (CHAT, COMPLETION, *offered)
    places = [place for each in dialects for place in (each, each.counting) if place is not None]
    paths: dict[str, str] = {}
    """By a path or an endpoint that is taken: the path of the dialect that took it."""
    for place in places:
        for name in (place.path, place.endpoint):
            if name in paths:
                raise LoadError(
                    f"entry points of the group {GROUP}: two dialects offer {name}, at the paths"
                    f" {paths[name]} and {place.path}"
                )
            paths[name] = place.path
    return dialects


@functools.cache
def by_endpoint() -> Mapping[str, Dialect]:
    """The dialect of each endpoint, in which it generates or counts."""
    found: dict[str, Dialect] = {}
    for each in spoken():
        found[each.endpoint] = each
        if each.counting is not None:
            found[each.counting.endpoint] = each
    return found
