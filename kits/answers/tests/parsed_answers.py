"""What an answer is made of, in a form to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from recorded_answers import TOOLS

from tandem_answers.parsing.families import FAMILIES, Family
from tandem_answers.parsing.parser import Parser
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Part, Reasoning

MOST_HELD = FrontendConfig(model_path="m").max_call_characters


def parser(
    family: Family | str,
    *,
    reasoning: bool = True,
    opened: bool = False,
    tools: Any = TOOLS,
    most_held: int = MOST_HELD,
    unmarked: bool = False,
    whole: bool = False,
) -> Parser:
    family = FAMILIES[family] if isinstance(family, str) else family
    return Parser(
        family,
        reasoning=reasoning,
        opened=opened,
        tools=tools,
        most_held=most_held,
        unmarked=unmarked,
        whole=whole,
    )


def parsed(one: Parser, pieces: Iterable[str]) -> list[Part]:
    """All parts of an answer, with neighbours of a kind joined."""
    parts = [part for piece in pieces for part in one.push(piece)] + one.flush()
    joined: list[Part] = []
    for _, some in groupby(parts, lambda part: (type(part), getattr(part, "call", 0))):
        first, *others = some
        if isinstance(first, CallStart):
            joined += [first, *others]
        else:
            texts = [each.text for each in others if not isinstance(each, CallStart)]
            joined.append(first._replace(text="".join([first.text, *texts])))
    return joined


def plain(parts: Sequence[Part]) -> list[Any]:
    """Content as its text, reasoning as a list of its text, a call as its name and arguments."""
    said: list[Any] = []
    for part in parts:
        match part:
            case Content(text):
                said.append(text)
            case Reasoning(text):
                said.append([text])
            case CallStart(call, name):
                [arguments] = [
                    each.text
                    for each in parts
                    if isinstance(each, CallArguments) and each.call == call
                ]
                said.append((name, json.loads(arguments)))
    return said


def check_cuts(
    family: Family | str, text: str, expected: list[Any], *, every: int = 1, **asked: Any
) -> None:
    """The text is `expected`, whole, character by character, and cut in two at each place, or each
    `every`th; no call of it is broken or cut."""
    halves = [[text[:at], text[at:]] for at in range(0, len(text), every)]
    for pieces in ([text], [*text], *halves):
        one = parser(family, **asked)
        assert plain(parsed(one, pieces)) == expected, pieces
        assert (one.broken, one.cut) == (0, frozenset())
