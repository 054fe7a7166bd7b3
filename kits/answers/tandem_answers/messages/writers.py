"""Rows to the answers of `/v1/messages`: events, or one body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tandem.errors import TandemError
from tandem.upstream.answer import ChoiceFinish, Row
from tandem_answers.blocks import (
    BlockBegun,
    BlockEnded,
    BlockGrown,
    Blocks,
    Change,
    StreamedBlock,
    event,
)
from tandem_answers.messages import answers, errors
from tandem_answers.messages.requests import INVALID_JSON
from tandem_frontend.openai.answers import Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.parsed import Parsed

_encode = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageAnswer:
    def __init__(
        self, asked: Asked, hold: Callable[[int], object] | None, *, whole: bool = False
    ) -> None:
        """`hold`, `whole`: see Blocks."""
        self._asked = asked
        self.blocks = Blocks(asked, hold, whole=whole)

    @property
    def stop_reason(self) -> answers.StopReason:
        if self.blocks.finish.withheld:
            return "refusal"
        match self.blocks.reason:
            case "length":
                return "max_tokens"
            case "tool_calls":
                return "tool_use"
        return "end_turn" if self.stop_sequence is None else "stop_sequence"

    @property
    def stop_sequence(self) -> str | None:
        """The client's stop sequence that was met; None for a hook's reason."""
        finish = self.blocks.finish
        return None if finish.withheld else finish.stop_reason or None

    @property
    def stop_details(self) -> answers.RefusalDetails | None:
        """What a hook or a classifier said, where one ended the answer."""
        finish = self.blocks.finish
        return answers.RefusalDetails(explanation=finish.stop_reason) if finish.withheld else None

    def begun(self) -> answers.WholeMessage:
        """The message before anything came; what was read from a cache is not known yet."""
        tokens = self._asked.prompt_tokens
        usage = answers.MessageUsage(
            input_tokens=tokens, cache_read_input_tokens=0, output_tokens=0
        )
        return self._message([], usage)

    def whole(self, usage: Usage) -> answers.WholeMessage:
        message = self._message([whole_block(block) for block in self.blocks.all], counted(usage))
        message.stop_reason, message.stop_sequence = self.stop_reason, self.stop_sequence
        message.stop_details = self.stop_details
        return message

    def _message(
        self, content: list[answers.AnswerBlock], usage: answers.MessageUsage
    ) -> answers.WholeMessage:
        usage.service_tier = "priority" if self._asked.tier == "priority" else "standard"
        return answers.WholeMessage(
            id=f"msg_{self._asked.id}",
            model=self._asked.shown_model,
            content=content,
            stop_reason=None,
            stop_sequence=None,
            stop_details=None,
            usage=usage,
        )


class MessageEvents:
    def __init__(self, asked: Asked) -> None:
        self._answer = MessageAnswer(asked, None)  # nothing is said again of what was said
        self._trace_id = asked.task.trace_id

    @property
    def parsed(self) -> Parsed:
        return self._answer.blocks.parsed

    def opening(self) -> Iterator[bytes]:
        yield event("message_start", message=self._answer.begun())

    def row(self, row: Row) -> bytes:
        return _changes(self._answer.blocks.row(row))

    def ending(self, ending: ChoiceFinish) -> bytes:
        blocks = self._answer.blocks
        events = _changes(blocks.ending(ending))
        return events if blocks.open is None else events + _change(BlockEnded(blocks.open))

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        answer = self._answer
        delta = {
            "stop_reason": answer.stop_reason,
            "stop_sequence": answer.stop_sequence,
            "stop_details": answer.stop_details,
        }
        return event("message_delta", delta=delta, usage=counted(usage)) + event("message_stop")

    def failing(self, error: TandemError) -> bytes:
        return b"event: error\ndata: %b\n\n" % errors.body(error, self._trace_id)


def counted(usage: Usage) -> answers.MessageUsage:
    """Here tokens that were read from a cache are no input tokens."""
    cached = usage.prompt_tokens_details.cached_tokens
    return answers.MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        cost=usage.cost,
    )


def whole_block(block: StreamedBlock) -> answers.AnswerBlock:
    """The answer's block with the text, reasoning or call that is kept of it."""
    match block.kind:
        case "text":
            return answers.TextBlock(text=block.text)
        case "reasoning":
            return answers.ThinkingBlock(thinking=block.text)
        case "call":
            return answers.ToolUseBlock(id=block.call_id, name=block.name, input=_input(block.text))


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
            return event("content_block_start", index=block.index, content_block=whole_block(block))
        case BlockGrown(block=block, text=text):
            type, member = _DELTAS[block.kind]
            delta = {"type": type, member: text}
            return event("content_block_delta", index=block.index, delta=delta)
        case BlockEnded(block=block):
            return event("content_block_stop", index=block.index)
