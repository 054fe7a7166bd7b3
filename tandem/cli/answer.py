"""One streamed chat completion, held against what OpenAI's clients rely on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from tandem.cli.client import Client
from tandem.endings import FinishReason

CHAT = "/v1/chat/completions"


class AnswerError(Exception):
    """The stream is not what a client of this API may expect, or it did not end in time."""


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer. `chunks` counts the chunks that brought text."""

    text: str = ""
    chunks: int = 0
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def completion_tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    def add(self, event: Mapping[str, Any]) -> None:
        """Raises AnswerError for an event that may not come here."""
        if event.get("object") != "chat.completion.chunk":
            raise AnswerError(f"an event is a {event.get('object')!r}, not a chunk")
        self.ids.add(event["id"])
        for choice in event["choices"]:
            if self.finish_reason is not None:
                raise AnswerError("a chunk came after the one with the finish_reason")
            if piece := choice["delta"].get("content"):
                self.text += piece
                self.chunks += 1
            self.finish_reason = choice.get("finish_reason")
            self.stop_reason = choice.get("stop_reason")
        self.usage = event.get("usage") or self.usage

    def check(self) -> None:
        """Raises AnswerError where the whole lacks something."""
        if len(self.ids) != 1:
            raise AnswerError(f"the chunks have {len(self.ids)} ids, not one")
        if self.finish_reason not in get_args(FinishReason):
            raise AnswerError(f"the finish_reason is {self.finish_reason!r}")
        counts = [self.usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total")]
        prompt, completion, total = (count if isinstance(count, int) else 0 for count in counts)
        if prompt < 1 or completion < 1 or prompt + completion != total:
            raise AnswerError(f"the usage does not add up: {dict(self.usage)}")


def stream(client: Client, body: Mapping[str, Any], *, ends_at: float) -> StreamedAnswer:
    """Ask for a chat completion and read its stream to [DONE].

    `ends_at`, in time.monotonic's seconds, holds for the whole stream. Raises ApiError where the
    frontend refuses or the stream breaks, AnswerError where what came is wrong.
    """
    answer = StreamedAnswer()
    try:
        for event in client.stream(CHAT, {**body, "stream_options": {"include_usage": True}}):
            answer.add(event)
            if time.monotonic() > ends_at:
                raise AnswerError("the time is over: the answer has not ended")
    except (KeyError, TypeError) as error:
        raise AnswerError(f"a chunk lacks what it must have: {error!r}") from error
    answer.check()
    return answer
