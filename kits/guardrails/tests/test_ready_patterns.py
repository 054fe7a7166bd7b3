"""Regular expressions over chunk borders, against one search of the whole text with `re`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hook_driver import Feed, equal_parts, feed, parts_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case

from tandem.errors import LoadError
from tandem_guardrails.beginnings import NotUnderstoodError, beginnings
from tandem_guardrails.patterns import Patterns

# --- the beginnings of a pattern -----------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\x61", "(?i:A)"])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?", "{1,3}?"])
PATTERNS = st.recursive(
    st.builds(str.__add__, ATOMS, REPEATS),
    lambda inner: st.one_of(
        st.builds(str.__add__, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, REPEATS),
        st.builds("(?P<n>{})".format, inner),
    ),
    max_leaves=5,
).filter(lambda pattern: pattern.count("?P<n>") < 2 and len(re.findall("[*+{]", pattern)) <= 3)
"""With more repeats one inside the other, `re` alone takes minutes for six letters."""
STRINGS = [
    "".join(letters) for size in range(7) for letters in itertools.product("ab", repeat=size)
]


@settings(max_examples=200)
@given(pattern=PATTERNS)
def test_every_text_that_can_go_on_to_a_match_is_a_beginning(pattern: str) -> None:
    begun = re.compile(beginnings(pattern))
    matches = [text for text in STRINGS if re.fullmatch(pattern, text)]
    can_go_on = {match[:size] for match in matches for size in range(len(match))}
    assert all(begun.fullmatch(text) for text in can_go_on)


@settings(max_examples=200)
@given(pattern=PATTERNS)
def test_a_text_that_cannot_go_on_is_no_beginning(pattern: str) -> None:
    begun = re.compile(beginnings(pattern))
    for text in ("ab", "ba", "bb", "aaa", "abab"):
        if begun.fullmatch(text):
            # Whatever it goes on with, it is still a beginning or a match, at least once.
            assert any(
                begun.fullmatch(text + more) or re.fullmatch(pattern, text + more) for more in "ab"
            )


@pytest.mark.parametrize("pattern", [r"a\Qb*\E", r"a(?i)b", r"(a(?s).)"])
def test_syntax_that_is_not_taken_apart_is_said_so(pattern: str) -> None:
    with pytest.raises(NotUnderstoodError):
        beginnings(pattern)


# --- the hook ------------------------------------------------------------------------------------

CASES = [
    [r"ab+c"],
    [r"\bab\b", r"b{2,4}"],
    [r"a|abcd"],
    [r"[a-c]+@[a-c]+", r"\d{3,5}"],
    [r"(?i)AB\s+c", "é.☃"],
    [r"^ab|c$"],
    [r"(?m)^b|c$"],
    [r"a.*?b", r"12\B"],
]
TEXT = st.one_of(
    st.text("abc1 2\né☃@", max_size=30),
    st.lists(st.sampled_from(["ab", "abbc", "abcd", "a@b", "1234", "AB  c", "é ☃", "b", " "])).map(
        lambda words: "".join(words[:12])
    ),
)


def redacted(patterns: list[str], text: str) -> tuple[str, list[tuple[int, int]]]:
    """One search of the whole text: the leftmost match, the first pattern of several there."""
    shown, spans, place = "", [], 0
    # Where lines do not count, RE2's $ is the very end, and not also the line feed before it.
    same = [one if "(?m)" in one else one.replace("$", r"\Z") for one in patterns]
    while True:
        found = [re.compile(one, re.ASCII).search(text, place) for one in same]
        hits = [hit for hit in found if hit is not None]
        if not hits:
            return shown + text[place:], spans
        hit = min(hits, key=lambda one: one.start())
        shown += text[place : hit.start()] + "█"
        spans.append(hit.span())
        place = hit.end()


@settings(max_examples=500)
@given(text=TEXT, patterns=st.sampled_from(CASES), data=st.data())
def test_what_is_redacted_is_what_one_search_of_the_whole_text_finds(
    text: str, patterns: list[str], data: st.DataObject
) -> None:
    parts = data.draw(parts_of(text))
    hook = Patterns(patterns=[{"pattern": one, "replacement": "█"} for one in patterns])
    shown = feed(hook, parts)
    expected, spans = redacted(patterns, text)
    assert shown.text == expected
    assert shown.tokens == sorted(set(shown.tokens))
    for token, begin, end in tokens_of(parts, text):
        if any(begin < last and start < end for start, last in spans):
            assert token not in shown.tokens


@settings(max_examples=200)
@given(text=TEXT, data=st.data())
def test_a_terminate_shows_what_came_before_the_match(text: str, data: st.DataObject) -> None:
    hook = Patterns(patterns=[{"pattern": r"ab+c|\d{3}", "action": "terminate", "name": "found"}])
    shown = feed(hook, data.draw(parts_of(text)))
    hit = re.search(r"ab+c|[0-9]{3}", text)
    assert shown.text == (text[: hit.start()] if hit else text)
    assert shown.reason == ("found" if hit else None)


@settings(max_examples=100)
@given(text=TEXT, data=st.data())
def test_a_pattern_that_is_not_taken_apart_works_with_a_window(
    text: str, data: st.DataObject
) -> None:
    text = text[:40]
    hook = Patterns(patterns=[{"pattern": r"a(?i)B{1,3}C", "replacement": "█"}], max_match=5)
    shown = feed(hook, data.draw(parts_of(text)))
    assert shown.text == re.sub(r"a(?i:B{1,3}C)", "█", text)


def test_only_what_may_become_a_match_waits() -> None:
    way = Feed(Patterns(patterns=[{"pattern": r"ACME-\d{4}"}]))
    for text in ("The ", "AC", "ME-", "12", "x", " y"):
        way.push(text)
    assert way.shown.held == [0, 1, 2, 3, 0, 0]
    assert way.shown.pieces == ["The ", "ACME-12x", " y"]
    assert way.shown.tokens == [0, 1, 2, 3, 4, 5]


def test_what_was_redacted_is_dropped_in_the_token_channel_too() -> None:
    shown = feed(Patterns(patterns=[{"pattern": r"\d+"}]), [(c, 1) for c in "a12 b"])
    assert shown.text == "a[redacted] b"
    assert shown.tokens[:1] == [0]
    assert not {1, 2} & set(shown.tokens)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_match_that_is_longer_than_allowed_ends_the_answer(size: int) -> None:
    hook = Patterns(patterns=[{"pattern": r"<[^>]*>"}], max_match=8)
    assert feed(hook, equal_parts("a<234567>b", size)).text == "a[redacted]b"
    shown = feed(hook, equal_parts("a<2345678>b", size))
    assert (shown.text, shown.reason) == ("a", "pattern_too_long")


def test_what_is_held_is_bounded_where_a_match_never_ends() -> None:
    shown = feed(Patterns(patterns=[{"pattern": "<[^>]*>"}], max_match=20), [("<a", 1)] * 50)
    assert max(shown.held) <= 20
    assert shown.reason == "pattern_too_long"


def test_a_pattern_that_explodes_elsewhere_takes_linear_time() -> None:
    hook = Patterns(patterns=[{"pattern": r"(a|a)*(a|aa)+$x"}, {"pattern": "(x+x+)+y"}])
    way = Feed(hook)
    for _ in range(200):  # with backtracking the last of these would not end
        way.push("x")
    way.push("z", final=True)
    assert way.shown.text == "x" * 200 + "z"


def test_prefill_does_not_take_its_chunk_for_the_answers_end() -> None:
    hook = Patterns(patterns=[{"pattern": "ab$", "action": "terminate", "name": "r"}])
    assert feed(hook, [("ab", 1)]).reason == "r"
    assert feed(hook, [("ab", 1)], phase="prefill").reason is None


def test_sequences_are_apart_and_forgotten() -> None:
    hook = Patterns(patterns=[{"pattern": "ab"}])
    first, second = Feed(hook, request_id=1), Feed(hook, request_id=2)
    first.push("a")
    second.push("b")
    first.push("c", final=True)
    assert (first.shown.text, second.shown.text) == ("ac", "b")
    hook.close(2)
    assert len(hook._sequences) == 0


@one_case(
    ("config", "words"),
    [
        ({"patterns": []}, "at least one pattern"),
        ({"patterns": [{"pattern": "a(?=b)", "name": "p"}]}, "'p' is not a pattern that RE2 takes"),
        ({"patterns": [{"pattern": r"(a)\1"}]}, "RE2"),
        ({"patterns": [{"pattern": "a*"}]}, "matches the empty text"),
        ({"patterns": [{"pattern": r"\b"}]}, "matches the empty text"),
        ({"patterns": [{"pattern": "a", "flags": "i"}]}, "has no flags"),
        ({"patterns": ["a"]}, "must be a mapping"),
        ({"patterns": [{"pattern": "a", "action": "drop"}]}, "action must be one of"),
        ({"patterns": [{"pattern": "a"}], "max_match": 0}, "max_match"),
        ({"patterns": [{"pattern": "\ud800"}]}, "Unicode"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        Patterns(**config)
