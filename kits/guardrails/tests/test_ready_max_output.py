"""The length limit against the whole text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hook_driver import Feed, equal_parts, feed, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import LoadError
from tandem_guardrails.max_output import MaxOutput

TEXT = st.text("ab é😀 .\n", max_size=40)


def starts(unit: str, text: str) -> list[int]:
    """Where each unit begins."""
    if unit == "characters":
        return list(range(len(text)))
    pattern = r"\S+" if unit == "words" else r"[^\n]*\n|[^\n]+"
    return [found.start() for found in re.finditer(pattern, text)]


@settings(max_examples=300)
@given(
    text=TEXT,
    unit=st.sampled_from(["characters", "words", "lines"]),
    limit=st.integers(1, 8),
    data=st.data(),
)
def test_the_answer_ends_before_the_unit_that_is_one_too_many(
    text: str, unit: str, limit: int, data: st.DataObject
) -> None:
    shown = feed(MaxOutput(**{unit: limit}, reason="r"), data.draw(parts_of(text)))
    begins = starts(unit, text)
    over = len(begins) > limit
    assert shown.text == (text[: begins[limit]] if over else text)
    assert shown.reason == ("r" if over else None)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        ('He said "Go." Then 3.14 e.g.x left.\nEnd', ['He said "Go." ', "Then 3.14 e.g.x left.\n"]),
        ("你好。「再见！」好", ["你好。「", "再见！」"]),
        ("Wait... what?! Yes", ["Wait... ", "what?! "]),
        ("a title\n\nThe text.", ["a title\n\n", "The text."]),
    ],
)
def test_sentences_are_counted_over_any_chunks(text: str, sentences: list[str]) -> None:
    for size in (1, 2, 7, 100):
        parts = equal_parts(text, size)
        assert feed(MaxOutput(sentences=1), parts).text.strip("「") == sentences[0].strip("「")
        assert feed(MaxOutput(sentences=2), parts).text == "".join(sentences[:2])


def test_of_several_limits_the_first_that_is_reached_counts() -> None:
    hook = MaxOutput(words=3, characters=8)
    assert feed(hook, [("one two three", 1)]).text == "one two "
    assert feed(hook, [("a b c d", 1)]).text == "a b c "


def test_what_is_shown_keeps_its_tokens_and_nothing_is_held() -> None:
    way = Feed(MaxOutput(characters=5))
    for text in ("ab", "", "cde", "f"):
        way.push(text)
    assert (way.shown.text, way.shown.tokens, way.shown.held) == ("abcde", [0, 1, 2], [0, 0, 0])
    way.hook(way.chunk("", 0, True, aborted=True))
    assert len(way.hook._sequences) == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [({}, "needs a limit"), ({"words": 0}, "words must be"), ({"lines": "3"}, "lines must be")],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        MaxOutput(**config)
