"""An answer as the blocks it consists of, for those dialects whose answers are lists of them:
reasoning, texts and calls of tools, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from tandem.errors import InternalError
from tandem.upstream.answer import ChoiceFinish, Row
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Part, Reasoning
from tandem_frontend.openai.answers import ChatFinishReason, Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.parsed import Answer, Parsed, call_id

_encode = msgspec.json.Encoder().encode
_HELD_AT_ONCE = 4096
"""Characters; fewer are not told of."""
BlockKind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass(slots=True, eq=False)
class StreamedBlock:
    kind: BlockKind
    index: int
    name: str = ""
    call_id: str = ""
    written: StringIO = field(default_factory=StringIO)
    ended: bool = False

    @property
    def text(self) -> str:
        """The text of the block that has come so far; of a call, the text of its arguments."""
        return self.written.getvalue()


class BlockBegun(NamedTuple):
    block: StreamedBlock


class BlockGrown(NamedTuple):
    block: StreamedBlock
    text: str
    """The part of the block that has come now."""


class BlockEnded(NamedTuple):
    block: StreamedBlock


Change: TypeAlias = BlockBegun | BlockGrown | BlockEnded


def counted_already(size: int) -> None:
    """Hold nothing: what a body is made of was counted while it was collected."""


class Blocks:
    """Takes the one answer of a request apart as it comes."""

    def __init__(
        self, asked: Asked, hold: Callable[[int], object] | None, *, whole: bool = False
    ) -> None:
        """`hold`: told how much more text is kept; None: none is. `whole`: seen at its end only."""
        self._hold = hold
        self._loose = 0
        self._answer = None if asked.parsing is None else Answer(asked.parsing, whole=whole)
        self._asked = asked
        self._finish: ChoiceFinish | None = None
        self.all: list[StreamedBlock] = []

    @property
    def finish(self) -> ChoiceFinish:
        """How the answer ended. Raises InternalError before its end."""
        if self._finish is None:
            raise InternalError("the answer has no end")
        return self._finish

    @property
    def parsed(self) -> Parsed:
        return Parsed() if self._answer is None else self._answer.parsed

    def row(self, row: Row) -> Iterator[Change]:
        _, text, _, _, tokens = row
        if self._answer is None:
            return self._add([Content(text)] if text else [])
        return self._add(self._answer.push(text, tokens))

    def ending(self, finish: ChoiceFinish) -> Iterator[Change]:
        """What the end of the answer changes: a block that is still open is not ended by it."""
        self._finish = finish
        return self._add([] if self._answer is None else self._answer.flush())

    @property
    def reason(self) -> ChatFinishReason:
        """Why the answer ended, for its client."""
        return self.finish.reason if self._answer is None else self._answer.reason(self.finish)

    @property
    def open(self) -> StreamedBlock | None:
        """The one that more of the answer would go on."""
        return self.all[-1] if self.all and not self.all[-1].ended else None

    def _add(self, parts: Iterable[Part]) -> Iterator[Change]:
        for part in parts:
            match part:
                case CallStart():
                    id = call_id(self._asked.id, 0, part)
                    yield from self._begin("call", name=part.name, call_id=id)
                case CallArguments(text=text):
                    yield self._grow(text)
                case Content(text=text) if text:
                    yield from self._go_on("text", text)
                case Reasoning(text=text) if text:
                    yield from self._go_on("reasoning", text)

    def _go_on(self, kind: BlockKind, text: str) -> Iterator[Change]:
        if self.open is None or self.open.kind != kind:
            yield from self._begin(kind)
        yield self._grow(text)

    def _begin(self, kind: BlockKind, *, name: str = "", call_id: str = "") -> Iterator[Change]:
        if self.open is not None:
            self.open.ended = True
            yield BlockEnded(self.all[-1])
        self.all.append(StreamedBlock(kind, len(self.all), name, call_id))
        yield BlockBegun(self.all[-1])

    def _grow(self, text: str) -> BlockGrown:
        if self._hold is not None:
            self.all[-1].written.write(text)
            self._loose += len(text)
            if self._loose >= _HELD_AT_ONCE:
                self._hold(self._loose)
                self._loose = 0
        return BlockGrown(self.all[-1], text)


def event(type: str, **fields: Any) -> bytes:
    """A server-sent event, whose data says its type too."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode({"type": type, **fields}))


class BlockAnswer(Protocol):
    """What a dialect makes of blocks."""

    blocks: Blocks

    def whole(self, usage: Usage) -> msgspec.Struct:
        """The answer at its end."""


class BlockBody:
    def __init__(self, answer: BlockAnswer) -> None:
        self._answer = answer

    @property
    def parsed(self) -> Parsed:
        return self._answer.blocks.parsed

    def row(self, row: Row) -> None:
        for _ in self._answer.blocks.row(row):
            pass

    def ending(self, ending: ChoiceFinish) -> None:
        for _ in self._answer.blocks.ending(ending):
            pass

    def pieces(self, usage: Usage, report: Report | None) -> Iterator[bytes]:
        yield _encode(self._answer.whole(usage))
