"""Answers as a model that errs may write them: recorded ones that were cut, doubled and mixed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from parsed_answers import parsed, parser
from recorded_answers import RECORDED

from tandem_answers.parsing.families import FAMILIES
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Part

_TOKENS = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u00[01][0-9a-f]|[bfnrt])?")
"""What may be written into arguments in place of what a model wrote."""


def spoilt(family: str, seed: int, count: int) -> Iterator[str]:
    """`count` answers, the same for the same seed."""
    rng = random.Random(f"{family} {seed}")
    recorded = RECORDED[family]
    begin, end = recorded.opens
    texts = [*recorded[:4], f"Well, {begin}so.{end}\n{recorded.two} Done."]
    for _ in range(count):
        tokens = [*map(str, _TOKENS.findall(rng.choice(texts)))]
        for _ in range(rng.randint(1, 4)):
            at, to = sorted(rng.randint(0, len(tokens)) for _ in range(2))
            match rng.randrange(6):
                case 0:
                    tokens = tokens[:at] + tokens[to:]
                case 1:
                    tokens[at:at] = tokens[at : min(to, at + 8)]
                case 2 if tokens:
                    other = rng.randrange(len(tokens))
                    at = rng.randrange(len(tokens))
                    tokens[at], tokens[other] = tokens[other], tokens[at]
                case 3:
                    tokens = tokens[:to]
                case 4:
                    tokens[at:at] = [rng.choice(FAMILIES[family].markers or ("[",))]
                case _:
                    tokens[at:at] = [rng.choice('"\\{}[](),:;<>=\n 1aé')]
        yield "".join(tokens)


def check(family: str, text: str, rng: random.Random) -> None:
    """Raises AssertionError if the parser breaks a rule with this text."""
    asked = {name: rng.random() < 0.3 for name in ("opened", "unmarked", "whole")}
    whole = parser(family, **asked)
    parts = parsed(whole, [text])
    for pieces in (list(text), [*_pieces(text, rng)]):
        other = parser(family, **asked)
        assert parsed(other, pieces) == parts, "other pieces make other parts"
        assert (other.calls, other.broken) == (whole.calls, whole.broken)
        assert other.in_reasoning == whole.in_reasoning
    _check_calls(parts)
    if family not in CONVERTED:
        _check_order(text, parts)
    if whole.calls == 0:
        said = "".join(part.text for part in parts if not isinstance(part, CallStart))
        assert _stripped(said, family) == _stripped(text, family), "text is lost"


CONVERTED = {name for name in RECORDED if FAMILIES[name].envelope("now") is None}
"""Their arguments are written anew."""


def _pieces(text: str, rng: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = rng.randint(1, 9)
        yield text[at : at + size]
        at += size


def _check_calls(parts: list[Part]) -> None:
    """Calls are counted from 0, and arguments follow the call they are of."""
    begun = -1
    for part in parts:
        if isinstance(part, CallStart):
            begun += 1
            assert part.call == begun
        elif isinstance(part, CallArguments):
            assert part.call == begun >= 0


def _check_order(text: str, parts: list[Part]) -> None:
    """What is given out stands in the text, in this order, each character once."""
    at = 0
    for part in parts:
        if isinstance(part, CallStart):
            continue
        for char in _ESCAPE.sub("", part.text):
            at = text.find(char, at) + 1
            assert at > 0 or part.text == "{}", "text was made up"


def _stripped(text: str, name: str) -> str:
    """The text without space and without markers that are no part of what they stand around."""
    family = FAMILIES[name]
    thinking = family.thinking
    markers = {*family.silent, *family.sections}
    markers |= {thinking.begin, thinking.end} if thinking else set()
    markers = {"".join(marker.split()) for marker in markers}
    text = "".join(text.split())
    without = ""
    while without != text:
        without = text
        for header in family.headers:
            between = rf"(?:[^<]|{re.escape(header.between)})*"
            text = re.sub(re.escape(header.begin) + between + re.escape(header.end), "", text)
        for marker in sorted(markers, key=len, reverse=True):
            text = text.replace(marker, "")
    return text
