"""Takes the text of an answer apart as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from frontend.openai.parsing.calls import CallReader, Stage, Tools
from frontend.openai.parsing.families import Family
from frontend.openai.parsing.formats import Format, Objects, Thinking, mark_of
from frontend.openai.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from frontend.openai.parsing.source import Ended, Fault, Marks, Reader, Source, marks_of


class Parser:
    """Takes one answer apart, in the pieces its text comes in.

    The parts are the same whatever the pieces are, once neighbours of a kind are joined. No text
    raises. What is no marker of the family, and no syntax of a call that is well-formed and names
    one of `tools`, comes out as it is: as content, or as reasoning inside of it. Reasoning begins
    where nothing but space has come since another marker or the beginning; elsewhere its marker is
    text. Space around calls belongs to them. A call whose arguments have begun keeps what came of
    them if the rest is faulty or missing; the faulty rest is content.

    Args:
        family: How the model writes.
        reasoning: Whether reasoning is told from content. Otherwise it stays content, with its
            markers.
        opened: Whether the prompt has begun the reasoning already.
        tools: The JSON schema of the parameters of each tool that may be called, by the tool's
            name. Values that the family writes without their types get those of the schema. None:
            no call is looked for.
        most_held: Characters that may be held back, of beginnings of calls and of calls that have
            to be converted. What would take more is text.
    """

    def __init__(
        self,
        family: Family,
        *,
        reasoning: bool,
        opened: bool,
        tools: Tools | None,
        most_held: int,
    ) -> None:
        self.in_reasoning = reasoning and opened and family.thinking is not None
        """Whether what comes next is reasoning, unless it ends."""
        self.broken = 0
        """Calls that failed after it was clear that they were some."""
        self.cut = 0
        """Calls whose arguments have begun and are not whole: nobody can make them."""
        self._parts: list[Part] = []
        self._source = Source(most_held)
        self._reader = CallReader(self._source, tools or {}, self._part_of_call)
        self._table = _table(family, reasoning, bool(tools))
        self._fresh = True
        """Whether nothing but space has come since a marker, a call or the beginning."""
        self._marked = False
        """Whether a marker or a call has come."""
        self._quick: tuple[type[Content | Reasoning], Marks] | None = None
        """What text is that has nothing a marker may begin with, where text has come before it."""
        self._reading = self._run()
        next(self._reading)

    @property
    def calls(self) -> int:
        """How many calls have begun so far."""
        return self._reader.calls

    def push(self, text: str) -> list[Part]:
        """What `text` adds to the answer."""
        if self._quick is not None:
            kind, marks = self._quick
            if not marks.first.search(text):
                return [kind(text)] if text else []
        self._source.feed(text)
        return self._resume()

    def flush(self) -> list[Part]:
        """What was held back, at the end of the answer: nothing can be pushed after it."""
        self._source.ended = True
        return self._resume()

    def _resume(self) -> list[Part]:
        self._parts = []
        next(self._reading, None)
        return _joined(self._parts) if len(self._parts) > 1 else self._parts

    def _run(self) -> Reader[None]:
        while True:
            self._reader.stage = Stage.TEXT
            try:
                yield from self._next()
            except Fault:
                self._fail()
            except Ended:
                if self._end():
                    return

    def _next(self) -> Reader[None]:
        """Reads on to the next marker, and what belongs to it."""
        if self._fresh and not self.in_reasoning:
            format_ = yield from self._unmarked()
            if format_ is not None:
                self._reader.certain = False
                yield from self._reader.read(format_)
                self._marked = True
                return
        mark = yield from self._text()
        thinking = self._table.thinking
        if formats := self._table.marked.get(mark):
            yield from self._call(mark, formats)
        elif thinking is not None and mark == thinking.begin:
            if not self._fresh:
                self._give_out()
                return
            self.in_reasoning = True
        elif thinking is not None and mark == thinking.end:
            self.in_reasoning = False
        self._source.release()
        self._fresh = self._marked = True

    def _unmarked(self) -> Reader[Format | None]:
        """Takes the space that may stand before a call; gives the format of one that needs no
        marker, if it may begin here."""
        self._reader.stage = Stage.SPACE
        self._source.hold()
        char = yield from self._source.peek()
        if self.calls and char == self._table.separator:
            self._source.take(self._source.at + 1)
            char = yield from self._source.peek()
        return self._table.bare.get(char)

    def _text(self) -> Reader[str]:
        """Gives out the text up to the next marker; takes and gives this."""
        source, table = self._source, self._table
        kind = Reasoning if self.in_reasoning else Content
        marks = table.inside if self.in_reasoning else table.outside
        while True:
            begin, end = marks.find(source.text, source.at, ended=source.ended)
            if begin > source.at:
                self._give_out()
                self._parts.append(kind(source.take(begin)))
            if end > begin:
                if self._reader.stage is Stage.TEXT:
                    source.hold()
                source.take(end)
                return source.text[begin:end]
            if source.spent and not self._fresh:
                self._quick = kind, marks
            yield from source.more()
            self._quick = None

    def _call(self, mark: str, formats: tuple[Format, ...]) -> Reader[None]:
        self._reader.stage = Stage.HEAD
        self._reader.certain = len(mark) > 1 and not mark.isalpha()
        format_ = formats[0]
        if len(formats) > 1:
            objects = (yield from self._source.peek()) in "{["
            format_ = next(each for each in formats if isinstance(each, Objects) == objects)
        yield from self._reader.read(format_)

    def _part_of_call(self, part: CallStart | CallArguments) -> None:
        self.in_reasoning = False
        self._parts.append(part)

    def _give_out(self) -> None:
        """Makes text of what is held."""
        held = self._source.release()
        if held:
            self._parts.append(Reasoning(held) if self.in_reasoning else Content(held))
        self._fresh = False
        self._reader.stage = Stage.TEXT

    def _fail(self) -> None:
        self.broken += self._begun
        self.cut += self._reader.stage is Stage.ARGUMENTS
        self._give_out()

    @property
    def _begun(self) -> bool:
        """Whether what is read is a call."""
        stage = self._reader.stage
        return stage in (Stage.ARGUMENTS, Stage.TAIL) or (
            stage is Stage.HEAD and self._reader.certain
        )

    def _end(self) -> bool:
        """Decides about what is undecided at the end of the answer; says whether all is read."""
        stage = self._reader.stage
        if stage is Stage.HEAD:
            self._fail()
        elif stage is Stage.SPACE:
            held = self._source.release()
            if held.strip() or not self._marked:
                self._parts.append(Content(held))
        elif stage is Stage.ARGUMENTS:
            self.cut += 1
            self._reader.arguments(self._source.take(len(self._source.text)))
        return stage is not Stage.HEAD


@dataclass(frozen=True)
class _Table:
    """What a parser looks for."""

    thinking: Thinking | None
    marked: dict[str, tuple[Format, ...]]
    bare: dict[str, Format]
    separator: str
    outside: Marks
    inside: Marks


@lru_cache(maxsize=256)
def _table(family: Family, reasoning: bool, tools: bool) -> _Table:
    thinking = family.thinking if reasoning else None
    calls = family.calls if tools else ()
    marked: dict[str, tuple[Format, ...]] = {}
    bare: dict[str, Format] = {}
    for each in calls:
        if each.begin:
            marked[mark_of(each)] = (*marked.get(mark_of(each), ()), each)
        else:
            bare["[" if isinstance(each, Objects) and each.array else "{"] = each
    silent = (*(family.silent if reasoning else ()), *(family.sections if tools else ()))
    begin = (thinking.begin,) if thinking else ()
    to_call = (*marked, *family.sections) if thinking and family.call_ends_thought else ()
    end = (thinking.end, *to_call) if thinking else ()
    return _Table(
        thinking=thinking,
        marked=marked,
        bare=bare,
        separator=_separator(calls),
        outside=marks_of(*begin, *marked, *silent),
        inside=marks_of(*begin, *end),
    )


def _separator(calls: tuple[Format, ...]) -> str:
    """What stands between calls that have no marker of their own."""
    bare = (each for each in calls if isinstance(each, Objects) and not each.begin)
    return next((each.separator.strip() for each in bare), "")


def _joined(parts: list[Part]) -> list[Part]:
    """The parts, with neighbours of a kind made one."""
    joined: list[Part] = []
    for _, some in groupby(parts, type):
        first, *others = some
        if isinstance(first, CallStart):
            joined += (first, *others)
        else:
            rest = (each.text for each in others if not isinstance(each, CallStart))
            joined.append(first._replace(text=first.text + "".join(rest)))
    return joined
