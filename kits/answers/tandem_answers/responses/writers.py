"""Rows to the answers of `/v1/responses`: events, or one body."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tandem.errors import TandemError
from tandem.upstream.answer import ChoiceFinish, Row
from tandem_answers import blocks
from tandem_answers.responses import answers
from tandem_answers.responses.requests import CUSTOM_INPUT, ResponseTool, joined_name
from tandem_frontend.openai.answers import Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.parsed import Parsed

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "call": "response.function_call_arguments.delta",
}


class _CustomArguments(msgspec.Struct):
    input: str = msgspec.field(name=CUSTOM_INPUT)


class _Called(NamedTuple):
    """How a client knows the tool that is called."""

    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    custom: bool = False


class ResponseAnswer:
    def __init__(self, asked: Asked, hold: Callable[[int], object], *, whole: bool = False) -> None:
        """`hold`, `whole`: see Blocks."""
        self._asked = asked
        self._created_at = int(time.time())
        self.blocks = blocks.Blocks(asked, hold, whole=whole)
        self._said = msgspec.json.decode(asked.repeated, type=answers.Repeated)
        self._called = dict(_tools(self._said.tools))

    def is_custom(self, block: blocks.StreamedBlock) -> bool:
        return block.kind == "call" and self._tool(block).custom

    def _tool(self, block: blocks.StreamedBlock) -> _Called:
        return self._called.get(block.name) or _Called(block.name)

    @property
    def last_status(self) -> answers.ItemStatus:
        """What the item that is open at the end becomes."""
        return "completed" if self._incomplete is None else "incomplete"

    def whole(self, usage: Usage) -> answers.Response:
        return self.response(
            self.last_status,
            incomplete_details=self._incomplete,
            usage=_usage(usage),
            output=self._items(self.last_status),
        )

    def failed(self, error: TandemError) -> answers.Response:
        """The answer as far as it came."""
        limited = error.http_status == 429
        failure = answers.ResponseError(
            code="rate_limit_exceeded" if limited else "server_error", message=error.message
        )
        return self.response("failed", error=failure, output=self._items("incomplete"))

    def _items(self, last: answers.ItemStatus) -> list[answers.OutputItem]:
        """`last`: what becomes of a block that is still open."""
        return [self.item(block, "completed" if block.ended else last) for block in self.blocks.all]

    def response(
        self, status: answers.Status, *, output: list[answers.OutputItem], **fields: Any
    ) -> answers.Response:
        return answers.Response(
            **msgspec.structs.asdict(self._said),
            id=f"resp_{self._asked.id}",
            created_at=self._created_at,
            status=status,
            model=self._asked.shown_model,
            service_tier=self._asked.tier,
            output=output,
            **fields,
        )

    def item(self, block: blocks.StreamedBlock, status: answers.ItemStatus) -> answers.OutputItem:
        """The output item of a block, with the text or call that has come so far."""
        id, text = self.item_id(block), block.text
        match block.kind:
            case "text":
                parts = [answers.OutputText(text=text)]
                return answers.OutputMessage(id=id, status=status, content=parts)
            case "reasoning":
                return answers.OutputReasoning(
                    id=id, status=status, content=[answers.ReasoningText(text=text)]
                )
            case "call":
                tool = self._tool(block)
                call: dict[str, Any] = {
                    "id": id,
                    "call_id": block.call_id,
                    "name": tool.name,
                    "namespace": tool.namespace,
                    "status": status,
                }
                if tool.custom:
                    return answers.OutputCustomCall(**call, input=_custom_input(text))
                return answers.OutputCall(**call, arguments=text)

    def item_id(self, block: blocks.StreamedBlock) -> str:
        return f"{_PREFIXES[block.kind]}_{self._asked.id}_{block.index}"

    @property
    def _incomplete(self) -> answers.IncompleteDetails | None:
        finish = self.blocks.finish
        if finish.withheld:
            return answers.IncompleteDetails(
                reason="content_filter", stop_reason=finish.stop_reason
            )
        if finish.reason == "length":
            return answers.IncompleteDetails(reason="max_output_tokens")
        return None


class ResponseEvents:
    def __init__(self, asked: Asked, hold: Callable[[int], object]) -> None:
        """`hold` is told how many bytes more are kept until the end."""
        self._answer = ResponseAnswer(asked, hold)
        self._number = 0

    @property
    def parsed(self) -> Parsed:
        return self._answer.blocks.parsed

    def opening(self) -> Iterator[bytes]:
        for type in ("response.created", "response.in_progress"):
            yield self._event(type, response=self._answer.response("in_progress", output=[]))

    def row(self, row: Row) -> bytes:
        return self._changes(self._answer.blocks.row(row))

    def ending(self, ending: ChoiceFinish) -> bytes:
        answer = self._answer
        events = self._changes(answer.blocks.ending(ending))
        if (block := answer.blocks.open) is not None:
            events += self._end(block, answer.last_status)
        return events

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        response = self._answer.whole(usage)
        return self._event(f"response.{response.status}", response=response)

    def failing(self, error: TandemError) -> bytes:
        """What went wrong by its own code, and the answer as far as it came."""
        told = self._event(
            "error", code=error.code, message=error.message, param=error.param or None
        )
        return told + self._event("response.failed", response=self._answer.failed(error))

    def _changes(self, changes: Iterable[blocks.Change]) -> bytes:
        return b"".join(map(self._change, changes))

    def _change(self, change: blocks.Change) -> bytes:
        match change:
            case blocks.BlockBegun(block=block):
                return self._begin(block)
            case blocks.BlockGrown(block=block, text=text):
                return self._grow(block, text)
            case blocks.BlockEnded(block=block):
                return self._end(block, "completed")

    def _begin(self, block: blocks.StreamedBlock) -> bytes:
        item = self._answer.item(block, "in_progress")
        if isinstance(item, answers.OutputCall | answers.OutputCustomCall):
            return self._item_event("added", item, block)
        (part,) = item.content
        item.content = []
        added = self._item_event("added", item, block)
        return added + self._on(block, "response.content_part.added", content_index=0, part=part)

    def _grow(self, block: blocks.StreamedBlock, text: str) -> bytes:
        type = _DELTAS[block.kind]
        match block.kind:
            case "text":
                return self._on(block, type, content_index=0, delta=text, logprobs=[])
            case "reasoning":
                return self._on(block, type, content_index=0, delta=text)
            case "call" if self._answer.is_custom(block):
                return b""  # JSON of it is no text yet
            case "call":
                return self._on(block, type, delta=text)

    def _end(self, block: blocks.StreamedBlock, status: answers.ItemStatus) -> bytes:
        item = self._answer.item(block, status)
        match item:
            case answers.OutputCustomCall(input=text):
                type = "response.custom_tool_call_input"
                done = self._on(block, f"{type}.delta", delta=text)
                done += self._on(block, f"{type}.done", input=text)
            case answers.OutputCall(name=name, arguments=arguments):
                type = "response.function_call_arguments.done"
                done = self._on(block, type, name=name, arguments=arguments)
            case answers.OutputMessage(content=[part]):
                done = self._on(
                    block,
                    "response.output_text.done",
                    content_index=0,
                    text=part.text,
                    logprobs=[],
                )
                done += self._on(block, "response.content_part.done", content_index=0, part=part)
            case answers.OutputReasoning(content=[thought]):
                type = "response.reasoning_text.done"
                done = self._on(block, type, content_index=0, text=thought.text)
                done += self._on(block, "response.content_part.done", content_index=0, part=thought)
        return done + self._item_event("done", item, block)

    def _item_event(
        self, what: str, item: answers.OutputItem, block: blocks.StreamedBlock
    ) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=block.index, item=item)

    def _on(self, block: blocks.StreamedBlock, type: str, **fields: Any) -> bytes:
        id = self._answer.item_id(block)
        return self._event(type, item_id=id, output_index=block.index, **fields)

    def _event(self, type: str, **fields: Any) -> bytes:
        written = blocks.event(type, sequence_number=self._number, **fields)
        self._number += 1
        return written


def _tools(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, _Called]]:
    """By the names that the model knows them by."""
    for tool in tools:
        if tool.type == "custom":
            yield tool.name, _Called(tool.name, custom=True)
        for each in tool.tools or ():
            called = _Called(each.name, tool.name, custom=each.type == "custom")
            yield joined_name(tool.name, each.name), called


def _custom_input(arguments: str) -> str:
    """The text in a custom tool's call; arguments that are no such object, as they are."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except msgspec.DecodeError:
        return arguments


def _usage(usage: Usage) -> answers.ResponseUsage:
    details = usage.completion_tokens_details
    reasoning = 0 if isinstance(details, msgspec.UnsetType) else details.reasoning_tokens
    return answers.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=answers.InputTokensDetails(
            cached_tokens=usage.prompt_tokens_details.cached_tokens
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=answers.OutputTokensDetails(reasoning_tokens=reasoning),
        total_tokens=usage.total_tokens,
        cost=usage.cost,
    )
