"""Banned phrases against a model that looks at the whole text at once."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hook_driver import Feed, feed, parts_of, tokens_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.errors import LoadError
from tandem.hooks.holdback import MAX_TEXTLESS
from tandem_guardrails.automaton import MAX_SKIPPED
from tandem_guardrails.banned_phrases import MAX_SYMBOLS, BannedPhrases

PHRASES = ["ab", "Abba c", "straße", "é b", "😀!", "ba ab", "İx", "ﬁn"]
LETTERS = "abc éßsStrteİix😀!\u200b\u0301e \n\tﬁfinＡ"
TEXT = st.one_of(
    st.text(LETTERS, max_size=25),
    st.lists(
        st.sampled_from([*PHRASES, "ab", "AB", "STRASSE", " ", "e\u0301  b", "a\u200bb", "c", "s"]),
        max_size=8,
    ).map("".join),
)


def normal(text: str) -> str:
    """As the documentation says that text is compared."""
    kept = "".join(c for c in text if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", kept).casefold())
    return " ".join(folded.replace("\x00", " ").split())


def is_word(character: str) -> bool:
    return (
        character == "_" or character.isalnum() or unicodedata.category(character).startswith("M")
    )


def counts(character: str) -> bool:
    return unicodedata.category(character) != "Cf"


def first(text: str, after: int, phrases: list[str], whole_words: bool) -> tuple[int, int] | None:
    """The phrase that is complete first in text[after:], of several the longest."""
    hits = []
    for start in range(after, len(text)):
        for end in range(start + 1, len(text) + 1):
            inside = text[start:end]
            edges = inside[0] + inside[-1]
            if any(c.isspace() or not counts(c) for c in edges):
                continue
            if normal(inside) not in map(normal, phrases):
                continue
            complete = end
            if whole_words:
                before = [c for c in text[:start] if counts(c)][-1:]
                behind = [c for c in text[end:] if counts(c)][:1]
                if before and is_word(before[0]) and is_word(inside[0]):
                    continue
                if is_word(inside[-1]):
                    if behind and is_word(behind[0]):
                        continue
                    while complete < len(text) and not counts(text[complete]):
                        complete += 1
                    hits.append((complete + 0.5, start, complete))
                    continue
            hits.append((complete, start, end))
    return min(hits)[1:] if hits else None


def hidden(text: str, phrases: list[str], whole_words: bool = False) -> list[tuple[int, int]]:
    found, place = [], 0
    while (hit := first(text, place, phrases, whole_words)) is not None:
        found.append(hit)
        place = hit[1]
    return found


def redacted(text: str, spans: list[tuple[int, int]]) -> str:
    shown, place = [], 0
    for start, end in spans:
        shown += [text[place:start], "█"]
        place = end
    return "".join([*shown, text[place:]])


@settings(max_examples=400)
@given(text=TEXT, whole_words=st.booleans(), data=st.data())
@example(text="größen sen ab", whole_words=False, data=None)
def test_what_is_redacted_does_not_depend_on_the_chunks(
    text: str, whole_words: bool, data: st.DataObject | None
) -> None:
    phrases = ["sen"] if data is None else data.draw(st.lists(st.sampled_from(PHRASES), min_size=1))
    if whole_words:
        phrases = phrases[:1]
    parts = [(c, 1) for c in text] if data is None else data.draw(parts_of(text))
    hook = BannedPhrases(phrases=phrases, action="redact", replacement="█", whole_words=whole_words)
    shown = feed(hook, parts or [("", 0)])
    spans = hidden(text, phrases, whole_words)
    assert shown.text == redacted(text, spans)
    for token, begin, end in tokens_of(parts, text):
        if any(begin < last and start < end for start, last in spans):
            assert token not in shown.tokens
    assert shown.tokens == sorted(set(shown.tokens))
    assert len(hook._sequences) == 0


@pytest.mark.promise("S0-017", "S0-018")
@settings(max_examples=200)
@given(text=TEXT, data=st.data())
def test_a_terminated_answer_shows_what_came_before_the_phrase_and_no_more(
    text: str, data: st.DataObject
) -> None:
    parts, streaming = data.draw(parts_of(text)), data.draw(st.booleans())
    shown = feed(BannedPhrases(phrases=PHRASES), parts, streaming=streaming)
    spans = hidden(text, PHRASES)
    assert shown.text == (text[: spans[0][0]] if spans else text)
    assert shown.reason == ("banned_phrase" if spans else None)
    assert text.startswith("".join(shown.pieces))


@settings(max_examples=200)
@given(text=TEXT, data=st.data())
def test_only_what_may_begin_a_phrase_is_held(text: str, data: st.DataObject) -> None:
    """At the end of each chunk: text that no phrase can begin in is shown, but for its chunk."""
    way = Feed(BannedPhrases(phrases=["abc", "b\u00e9x"], action="redact", replacement=""))
    parts = data.draw(parts_of(text))
    before = ""
    for place, (diff, tokens) in enumerate(parts, 1):
        way.push(diff, tokens, final=place == len(parts))
        before += diff
        if diff and not set(normal(diff)) & set("abce\u0301x"):
            tail = [c for c in diff if counts(c) and not c.isspace()]
            if tail:
                assert way.shown.held[-1] == 0
        assert way.shown.held[-1] <= 3 * len(before) + MAX_TEXTLESS


def test_tokens_that_pass_are_all_shown_and_a_held_token_waits_for_its_text() -> None:
    way = Feed(BannedPhrases(phrases=["forbidden phrase"]))
    for text in ("a ", "for", "bidden", " fruit", "."):
        way.push(text)
    assert way.shown.held == [0, 1, 2, 0, 0]
    assert way.shown.tokens == [0, 1, 2, 3, 4]
    assert way.shown.pieces == ["a ", "forbidden fruit", "."]


def test_the_bytes_of_a_banned_character_are_held_with_it() -> None:
    way = Feed(BannedPhrases(phrases=["😀"], action="redact", replacement=""))
    for text in ("", "", "", "😀", "a"):
        way.push(text)
    assert way.shown.held == [1, 2, 3, 0, 0]
    assert way.shown.tokens == [4]


def test_whole_words_wait_for_what_follows() -> None:
    def ended(text: str) -> str | None:
        hook = BannedPhrases(phrases=["ban"], whole_words=True, reason="r")
        return feed(hook, [(c, 1) for c in text]).reason

    assert [ended(text) for text in ("ban", "a ban.", "banana", "a ban", "urban", "ban_")] == [
        "r",
        "r",
        None,
        "r",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("straße", "STRASSE"),
        ("strasse", "Straße"),
        ("café", "cafe\u0301"),
        ("abc", "Ａｂｃ"),
        ("a b", "a \n\t b"),
        ("ab", "a\u00ad\u200bb"),
        ("İs", "i\u0307s"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
    ],
)
def test_text_is_compared_folded_and_redacted_as_it_came(phrase: str, text: str) -> None:
    hook = BannedPhrases(phrases=[phrase], action="redact", replacement="")
    assert feed(hook, [(c, 1) for c in f"<{text}>"]).text == "<>"


@pytest.mark.parametrize(("phrase", "text"), [("하", "한"), ("stras", "straß"), ("А", "A")])
def test_a_part_of_a_character_and_a_lookalike_are_no_match(phrase: str, text: str) -> None:
    assert feed(BannedPhrases(phrases=[phrase]), [(text, 1)]).reason is None


def test_case_matters_where_asked_for() -> None:
    hook = BannedPhrases(phrases=["Acme"], case_sensitive=True)
    assert feed(hook, [("acme", 1)]).reason is None
    assert feed(hook, [("Acme", 1)]).reason == "banned_phrase"


@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_held_of_a_phrase_drawn_out_is_bounded(size: int) -> None:
    def drawn_out(blanks: int) -> list[tuple[str, int]]:
        text = "a" + " " * blanks + "b"
        return [(text[at : at + size], 1) for at in range(0, len(text), size)]

    hook = BannedPhrases(phrases=["a b"])
    assert feed(hook, drawn_out(MAX_SKIPPED + 1)).reason == "banned_phrase"
    shown = feed(hook, drawn_out(MAX_SKIPPED + 2))
    assert shown.reason is None
    assert max(shown.held) <= MAX_SKIPPED + 3


def test_prefill_ends_at_a_phrase_but_not_at_half_a_word() -> None:
    hook = BannedPhrases(phrases=["ban"], whole_words=True)
    assert feed(hook, [("ban", 1)], phase="prefill").reason is None
    assert feed(hook, [("ban.", 1)], phase="prefill").reason == "banned_phrase"


def test_sequences_are_apart_and_forgotten() -> None:
    hook = BannedPhrases(phrases=["ab"])
    first_way, second = Feed(hook, request_id=1), Feed(hook, request_id=2)
    first_way.push("a")
    second.push("b")
    assert second.shown.reason is None
    first_way.push("b")
    assert first_way.shown.reason == "banned_phrase"
    hook.close(1)
    hook(second.chunk("", 0, True, aborted=True))
    assert len(hook._sequences) == 0


def test_phrases_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\ufeffone\n\n# two\n", encoding="utf-8")
    hook = BannedPhrases(phrases=["three"], file=str(tmp_path / "list"))
    for phrase in ("one", "# two", "three"):
        assert feed(hook, [(phrase, 1)]).reason == "banned_phrase"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "at least one phrase"),
        ({"phrases": [" \u200b"]}, "must not be empty"),
        ({"phrases": ["ab" * MAX_SYMBOLS]}, "more than 500000 characters"),
        ({"phrases": "ab"}, "phrases must be a list"),
        ({"phrases": ["a"], "action": "kill"}, "action must be one of terminate, redact"),
        ({"phrases": ["a"], "whole_words": "yes"}, "whole_words must be true or false"),
        ({"file": "/nowhere/at/all"}, "cannot be read"),
        ({"phrases": ["a"], "reason": ""}, "reason"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        BannedPhrases(**config)
