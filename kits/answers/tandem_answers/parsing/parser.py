"""Takes the text of an answer apart as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tandem_answers.parsing.calls import CallReader, CallStage
from tandem_answers.parsing.formats import (
    Format,
    Header,
    Objects,
    Pythonic,
    Xml,
    mark_of,
)
from tandem_answers.parsing.source import (
    AnswerEnded,
    AnswerSource,
    MarkerSearch,
    Reader,
    SyntaxFault,
    marks_of,
)
from tandem_frontend.openai.answer_parsers import (
    CallArguments,
    CallStart,
    Content,
    Part,
    Reasoning,
    Thinking,
    Tools,
)

if TYPE_CHECKING:
    from tandem_answers.parsing.family import Family  # which makes parsers


class Parser:
    """An AnswerParser of the contract, which says what its methods and counts are.

    The parts are the same whatever the pieces are, once neighbours of a kind are joined. No text
    raises. What is no marker of the family, and no syntax of a call that is well-formed and names
    one of `tools`, comes out as it is: as content, or as reasoning inside of it. Reasoning begins
    where nothing but space has come since another marker or the beginning; elsewhere its marker is
    text. Space around calls belongs to them, and space behind reasoning to that. A call whose
    arguments have begun keeps what came of them if the rest is faulty or missing; the faulty rest
    is content.

    A call within reasoning ends it in some families. It is held, with all that follows, until the
    answer ends: where the end marker of the reasoning still comes, the call was only thought about,
    and all of that is reasoning.

    The arguments are those of the contract, `ModelFamily.parser`. Beside what it says:

        unmarked: An end marker that has no beginning is one then. Otherwise such a one is text.
        whole: All that comes before an end marker without a beginning is reasoning then; otherwise
            it is given out already.
        tools: Values that the family writes without their types get those of the schema.
        most_held: What would take more is text: of beginnings of calls, and of calls that have to
            be converted. Of what may be reasoning, what would take more is none.
    """

    def __init__(
        self,
        family: Family,
        *,
        reasoning: bool,
        opened: bool,
        tools: Tools | None,
        most_held: int,
        unmarked: bool = False,
        whole: bool = False,
    ) -> None:
        self.in_reasoning = reasoning and opened and family.thinking is not None
        self.broken = 0
        self.cut: frozenset[int] = frozenset()
        self._parts: list[Part] = []
        self._most_held = most_held
        self._source = AnswerSource(most_held)
        self._reader = CallReader(self._source, tools or {}, self._part_of_call)
        self._table = _table(family, reasoning, bool(tools))
        self._fresh = True
        """Whether nothing but space has come since a marker, a call or the beginning."""
        self._marked = False
        """Whether a marker or a call has come."""
        self._behind_thought = False
        """Whether nothing but space has come since the end of reasoning."""
        self._section = ""
        """The marker around calls that has come last."""
        self._draft: _Draft | None = None
        self._unended = unmarked and not self.in_reasoning and self._table.may_lack_begin
        """Whether an end marker that comes outside of reasoning is one."""
        self._quick: tuple[type[Content | Reasoning], MarkerSearch] | None = None
        """What text is that has nothing a marker may begin with, where text has come before it."""
        if whole and self._unended:
            self._source.record()
            self._draft = _Draft([], 0, 0, self.cut)
        self._reading = self._run()
        next(self._reading)

    @property
    def calls(self) -> int:
        return self._reader.calls

    @property
    def undecided(self) -> bool:
        return self._draft is not None

    def push(self, text: str) -> list[Part]:
        if self._quick is not None:
            kind, marks = self._quick
            if not marks.first.search(text):
                return [kind(text)] if text else []
        self._source.feed(text)
        return self._resume()

    def flush(self) -> list[Part]:
        self._source.ended = True
        return self._resume()

    def _resume(self) -> list[Part]:
        self._parts = []
        next(self._reading, None)
        if self._source.recorded_size > self._most_held:
            self._settle()
        return _joined(self._parts) if len(self._parts) > 1 else self._parts

    def _run(self) -> Reader[None]:
        while True:
            self._reader.stage = CallStage.TEXT
            try:
                yield from self._next()
            except SyntaxFault:
                self._fail()
            except AnswerEnded:
                if self._end():
                    self._settle()
                    return

    def _next(self) -> Reader[None]:
        if self._fresh and (self._section or not self.in_reasoning):
            format_ = yield from self._unmarked()
            if format_ is not None:
                self._reader.certain = False
                yield from self._reader.read(format_)
                self._marked = True
                return
        mark = yield from self._text()
        if formats := self._table.marked.get(mark):
            known = yield from self._call(mark, formats)
        elif header := self._table.headers.get(mark):
            known = yield from self._header(header)
        else:
            known = self._marker(mark)
        if known:
            self._source.release()
            self._fresh = self._marked = True
        else:
            self._give_out()

    def _unmarked(self) -> Reader[Format | None]:
        """Takes space before a call; gives the format of a call without a marker, if one begins."""
        self._reader.stage = CallStage.SPACE
        self._source.hold()
        char = yield from self._source.peek()
        if self._behind_thought:
            self._source.release()
            self._source.hold()
            self._behind_thought = False
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
                self._add(kind(source.take(begin)))
            if end > begin:
                if self._reader.stage is CallStage.TEXT:
                    source.hold()
                source.take(end)
                return source.text[begin:end]
            if source.spent and not self._fresh and self._draft is None:
                self._quick = kind, marks
            yield from source.more()
            self._quick = None

    def _marker(self, mark: str) -> bool:
        """Does what a marker means that begins no call; says whether it means anything here."""
        thinking = self._table.thinking
        if thinking is not None and mark == thinking.begin:
            if self._fresh:
                self._settle()
                self.in_reasoning = True
                self._unended = False
            return self._fresh
        if thinking is not None and mark == thinking.end:
            return self._end_thought() or mark in self._table.silent
        if mark in self._table.sections:
            self._section = mark
        return True

    def _end_thought(self) -> bool:
        """At the end marker of reasoning: says whether there was any to end."""
        assert self._table.thinking is not None
        if self._source.recorded_size > self._most_held:
            self._settle()
        if not (self.in_reasoning or self._unended):
            return False
        self._behind_thought = self.in_reasoning or self._draft is not None
        if self._draft is not None:
            self.broken, self.cut = self._draft.broken, self._draft.cut
            self._reader.calls = self._draft.calls
            self._draft = None
            thought = self._source.recorded().removesuffix(self._table.thinking.end)
            self._parts.append(Reasoning(thought))
        self.in_reasoning = self._unended = False
        return True

    def _settle(self) -> None:
        """Gives out what may have been reasoning, and is none."""
        draft, self._draft = self._draft, None
        if draft is not None:
            self._source.recorded()
            self._parts += draft.parts

    def _add(self, part: Part) -> None:
        (self._parts if self._draft is None else self._draft.parts).append(part)

    def _header(self, header: Header) -> Reader[bool]:
        self._reader.stage = CallStage.HEAD
        self._reader.certain = False
        mark = ""
        while mark != header.end:
            yield from self._source.word()
            mark = yield from self._source.one_of(header.end, header.between)
        return True

    def _call(self, mark: str, formats: tuple[Format, ...]) -> Reader[bool]:
        """Reads the call that a marker begins; says whether one may begin here."""
        self._reader.stage = CallStage.HEAD
        self._reader.certain = len(mark) > 1 and not mark.isalpha()
        format_ = formats[0]
        if len(formats) > 1:
            objects = (yield from self._source.peek()) in "{["
            format_ = next(each for each in formats if isinstance(each, Objects) == objects)
        if not self._may_begin(format_):
            return False
        if self.in_reasoning:
            self._source.record()
        yield from self._reader.read(format_)
        return True

    def _may_begin(self, format_: Format) -> bool:
        match format_:
            case Objects(first=True):
                return self._fresh
            case Xml(inside=marker) | Pythonic(inside=marker):
                return marker in ("", self._section)
        return True

    def _part_of_call(self, part: CallStart | CallArguments) -> None:
        if self.in_reasoning:
            self.in_reasoning = False
            self._unended = True
            self._draft = _Draft([], self.calls - 1, self.broken, self.cut)
        self._add(part)

    def _give_out(self) -> None:
        held = self._source.release()
        if self._draft is None:
            self._source.recorded()
        if held:
            self._add(Reasoning(held) if self.in_reasoning else Content(held))
        self._fresh = self._behind_thought = False
        self._reader.stage = CallStage.TEXT

    def _fail(self) -> None:
        self.broken += self._begun
        if self._reader.stage is CallStage.ARGUMENTS:
            self.cut |= {self.calls - 1}
        self._give_out()

    @property
    def _begun(self) -> bool:
        """Whether what is read is a call."""
        stage = self._reader.stage
        return stage in (CallStage.ARGUMENTS, CallStage.TAIL) or (
            stage is CallStage.HEAD and self._reader.certain
        )

    def _end(self) -> bool:
        """Decides about what is undecided at the end of the answer; says whether all is read."""
        stage = self._reader.stage
        if stage is CallStage.HEAD:
            self._fail()
        elif stage is CallStage.SPACE:
            held = self._source.release()
            if held.strip() or not self._marked:
                self._add(Content(held))
        elif stage is CallStage.ARGUMENTS:
            self.cut |= {self.calls - 1}
            self._reader.arguments(self._source.take(len(self._source.text)))
        return stage is not CallStage.HEAD


class _Draft(NamedTuple):
    """Parts and counts that do not hold, if the end marker of reasoning still comes."""

    parts: list[Part]
    calls: int
    broken: int
    cut: frozenset[int]


@dataclass(frozen=True)
class _Table:
    thinking: Thinking | None
    marked: dict[str, tuple[Format, ...]]
    bare: dict[str, Format]
    headers: dict[str, Header]
    sections: tuple[str, ...]
    silent: tuple[str, ...]
    separator: str
    outside: MarkerSearch
    inside: MarkerSearch

    @property
    def may_lack_begin(self) -> bool:
        """Whether the end marker of reasoning tells that there was some: it ends nothing else."""
        return self.thinking is not None and self.thinking.end not in self.silent


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
    silent = family.silent if reasoning else ()
    sections = family.sections if tools else ()
    headers = {each.begin: each for each in (family.headers if reasoning else ())}
    thoughts = (thinking.begin, thinking.end) if thinking else ()
    to_call = (*marked, *sections) if thinking and family.call_ends_thought else ()
    return _Table(
        thinking=thinking,
        marked=marked,
        bare=bare,
        headers=headers,
        sections=sections,
        silent=silent,
        separator=_separator(calls),
        outside=marks_of(*thoughts, *marked, *silent, *sections, *headers),
        inside=marks_of(*thoughts, *to_call),
    )


def _separator(calls: tuple[Format, ...]) -> str:
    """What stands between calls that have no marker of their own."""
    bare = (each for each in calls if isinstance(each, Objects) and not each.begin)
    return next((each.separator.strip() for each in bare), "")


def _joined(parts: list[Part]) -> list[Part]:
    joined: list[Part] = []
    for _, some in groupby(parts, type):
        first, *others = some
        if isinstance(first, CallStart):
            joined += (first, *others)
        else:
            rest = (each.text for each in others if not isinstance(each, CallStart))
            joined.append(first._replace(text=first.text + "".join(rest)))
    return joined
