"""Rows to the answers of `/v1/messages`: events, or one body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tandem.errors import InternalError, TandemError
from tandem.upstream.answer import Finish, Row
from tandem_answers.blocks import (
    Block,
    BlockBegun,
    BlockBody,
    BlockEnded,
    BlockGrown,
    Blocks,
    Change,
    counted_already,
)
from tandem_answers.messages import errors
from tandem_answers.messages.answers import (
    AnswerBlock,
    MessageUsage,
    RefusalDetails,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    WholeMessage,
)
from tandem_answers.messages.requests import INVALID_JSON
from tandem_frontend.openai.answers import Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.writers import Parsed

_encode = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_NOTHING = msgspec.Raw(b"{}")


class _Answer:
    """What streams and bodies have in common."""

    def __init__(
        self, asked: Asked, hold: Callable[[int], object] | None, *, whole: bool = False
    ) -> None:
        self._asked = asked
        self.blocks = Blocks(asked, hold, whole=whole)
        self._finish: Finish | None = None

    def end(self, ending: Finish) -> None:
        self._finish = ending

    @property
    def stop_reason(self) -> StopReason:
        if self.finish.withheld:
            return "refusal"
        match self.blocks.reason(self.finish):
            case "length":
                return "max_tokens"
            case "tool_calls":
                return "tool_use"
        return "end_turn" if self.stop_sequence is None else "stop_sequence"

    @property
    def stop_sequence(self) -> str | None:
        """The client's stop sequence that was met; None for a hook's reason."""
        return None if self.finish.withheld else self.finish.stop_reason or None

    @property
    def stop_details(self) -> RefusalDetails | None:
        """What a hook or a classifier said, where one ended the answer."""
        if not self.finish.withheld:
            return None
        return RefusalDetails(explanation=self.finish.stop_reason)

    @property
    def finish(self) -> Finish:
        if self._finish is None:
            raise InternalError("the answer has no end")
        return self._finish

    def begun(self) -> WholeMessage:
        """The message before anything came; what was read from a cache is not known yet."""
        tokens = self._asked.prompt_tokens
        usage = MessageUsage(input_tokens=tokens, cache_read_input_tokens=0, output_tokens=0)
        return self._message([], usage)

    def whole(self, usage: Usage) -> WholeMessage:
        """The message at its end."""
        message = self._message([whole_block(block) for block in self.blocks.all], counted(usage))
        message.stop_reason, message.stop_sequence = self.stop_reason, self.stop_sequence
        message.stop_details = self.stop_details
        return message

    def _message(self, content: list[AnswerBlock], usage: MessageUsage) -> WholeMessage:
        usage.service_tier = "priority" if self._asked.tier == "priority" else "standard"
        return WholeMessage(
            id=f"msg_{self._asked.id}",
            model=self._asked.shown_model,
            content=content,
            stop_reason=None,
            stop_sequence=None,
            stop_details=None,
            usage=usage,
        )


class MessageEvents:
    """Writes events, each with its type."""

    def __init__(self, asked: Asked) -> None:
        self._answer = _Answer(asked, None)  # nothing is said again of what was said
        self._trace_id = asked.task.trace_id

    @property
    def parsed(self) -> Parsed:
        return self._answer.blocks.parsed

    def opening(self) -> Iterator[bytes]:
        yield _event("message_start", message=self._answer.begun())

    def row(self, row: Row) -> bytes:
        return _changes(self._answer.blocks.row(row))

    def ending(self, ending: Finish) -> bytes:
        blocks = self._answer.blocks
        self._answer.end(ending)
        events = _changes(blocks.ending())
        return events if blocks.open is None else events + _change(BlockEnded(blocks.open))

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        """Why it ended, and the usage."""
        answer = self._answer
        delta = {
            "stop_reason": answer.stop_reason,
            "stop_sequence": answer.stop_sequence,
            "stop_details": answer.stop_details,
        }
        last = _event("message_delta", delta=delta, usage=counted(usage))
        return last + _event("message_stop")

    def failing(self, error: TandemError) -> bytes:
        """The last event of a stream that has begun and cannot go on."""
        return b"event: error\ndata: %b\n\n" % errors.body(error, self._trace_id)


def message_body(asked: Asked) -> BlockBody:
    """Collects rows and writes them as one body."""
    return BlockBody(_Answer(asked, counted_already, whole=True))


def counted(usage: Usage) -> MessageUsage:
    """Here tokens that were read from a cache are no input tokens."""
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )


def whole_block(block: Block) -> AnswerBlock:
    """The answer's block with its whole text, reasoning or call."""
    match block.kind:
        case "text":
            return TextBlock(text=block.text)
        case "reasoning":
            return ThinkingBlock(thinking=block.text)
        case "call":
            return ToolUseBlock(id=block.call_id, name=block.name, input=_input(block.text))


def _input(arguments: str) -> msgspec.Raw:
    """A call's arguments as the model wrote them, where these are a JSON object."""
    text = arguments.strip() or "{}"
    try:
        _objects.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.Raw(_encode({INVALID_JSON: arguments}))
    return msgspec.Raw(text.encode())


def _changes(changes: Iterable[Change]) -> bytes:
    return b"".join(map(_change, changes))


def _change(change: Change) -> bytes:
    match change:
        case BlockBegun(block=block):
            return _event("content_block_start", index=block.index, content_block=_empty(block))
        case BlockGrown(block=block, text=text):
            type, member = _DELTAS[block.kind]
            delta = {"type": type, member: text}
            return _event("content_block_delta", index=block.index, delta=delta)
        case BlockEnded(block=block):
            return _event("content_block_stop", index=block.index)


def _empty(block: Block) -> AnswerBlock:
    match block.kind:
        case "text":
            return TextBlock(text="")
        case "reasoning":
            return ThinkingBlock(thinking="")
        case "call":
            return ToolUseBlock(id=block.call_id, name=block.name, input=_NOTHING)


def _event(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode({"type": type, **fields}))
