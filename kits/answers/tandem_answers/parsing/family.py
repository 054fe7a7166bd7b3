"""How models of one family write, as a row of the table of families."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from tandem_answers.parsing.formats import Format, Header, Objects
from tandem_answers.parsing.parser import Parser
from tandem_frontend.openai.answer_parsers import Envelope, Thinking, Tools

_SPECIAL = re.compile(r"\]<\][a-z]+\[>\[|<[^<>\s]+>|\[/?[A-Z_]+\]|｜[A-Z]+｜")
JSON_ARRAY = Objects(array=True, arguments="parameters")


@dataclass(frozen=True)
class Family:
    """A ModelFamily of the contract, which says what the methods are. None or empty: not known."""

    name: str
    thinking: Thinking | None = None
    calls: tuple[Format, ...] = ()
    """The first is how models write; others are read too."""
    sections: tuple[str, ...] = ()
    """Markers around all calls, without a meaning of their own."""
    silent: tuple[str, ...] = ()
    """Markers around content, which are no part of it."""
    headers: tuple[Header, ...] = ()
    """Markers before content, with words between the markers: no part of the content either."""
    call_ends_thought: bool = False
    """Whether a call inside a thought ends it: some models leave out the end marker."""
    signs: tuple[str, ...] = ()
    """Texts that the chat template of such a model contains, each of them."""
    thought_sign: str = ""
    """What a chat template has, beside the markers, whose model thinks."""
    architectures: tuple[str, ...] = ()
    """Classes of models that write like this, whatever their chat template is."""

    @property
    def markers(self) -> tuple[str, ...]:
        texts = [*self.sections, *self.silent]
        if self.thinking is not None:
            texts += [self.thinking.begin, self.thinking.end]
        for each in self.calls:
            texts += _texts(astuple(each))
        return tuple(dict.fromkeys(mark for text in texts for mark in _SPECIAL.findall(text)))

    def envelope(self, name: str) -> Envelope | None:
        return self.calls[0].envelope(name) if self.calls else None

    def forced(self) -> Family:
        return replace(self, calls=(JSON_ARRAY,), sections=())

    def with_thinking(self, thinking: Thinking | None) -> Family:
        return replace(self, thinking=thinking)

    def parser(
        self,
        *,
        reasoning: bool,
        opened: bool,
        tools: Tools | None,
        most_held: int,
        unmarked: bool = False,
        whole: bool = False,
    ) -> Parser:
        return Parser(
            self,
            reasoning=reasoning,
            opened=opened,
            tools=tools,
            most_held=most_held,
            unmarked=unmarked,
            whole=whole,
        )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _texts(each)
