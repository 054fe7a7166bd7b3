"""The window adapter against a model that checks the whole text at once: any text, any chunking."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hook_driver import Feed, Part, equal_parts, feed, parts_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import LoadError
from tandem.hooks.holdback import MAX_TEXTLESS
from tandem.hooks.loader import load_hook
from tandem.hooks.window import AsyncWindowHook, Block, Window, WindowHook

SECRET = re.compile(r"x[0-9]{1,3}|é☃+?é")
LONGEST = 8
TEXT = st.lists(
    st.sampled_from(["x1", "x12", "x123", "é☃é", "é☃☃é", "x", "é", "a", "😀", " ", ". ", "b\n"]),
    max_size=30,
).map("".join)


class Redact(WindowHook):
    def check(self, window: Window) -> str | None:
        return SECRET.sub("█", window.text)


class Collect(WindowHook):
    """Passes everything, and remembers what it was asked."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.windows: list[Window] = []

    def check(self, window: Window) -> None:
        self.windows.append(window)


class BlockPhrase(WindowHook):
    def check(self, window: Window) -> Block | None:
        at = window.text.find("ban")
        return Block("phrase", window.text[:at]) if at >= 0 else None


SETTINGS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 20),
        "overlap": st.integers(LONGEST, 12),
        "flush": st.sampled_from(["sentence", "size", "final"]),
        "max_characters": st.integers(1, 30),
    }
)


def no_longer_than_the_overlap(text: str) -> bool:
    return all(len(found.group()) <= LONGEST for found in SECRET.finditer(text))


@settings(max_examples=400)
@given(text=TEXT.filter(no_longer_than_the_overlap), config=SETTINGS, data=st.data())
def test_redaction_gives_what_one_check_of_the_whole_text_gives(
    text: str, config: dict[str, Any], data: st.DataObject
) -> None:
    parts = data.draw(parts_of(text))
    shown = feed(Redact(**config), parts)
    assert shown.text == SECRET.sub("█", text)
    hidden = [found.span() for found in SECRET.finditer(text)]
    for token, begin, end in tokens_of(parts, text):
        if any(begin < last and first < end for first, last in hidden):
            assert token not in shown.tokens
    assert shown.tokens == sorted(set(shown.tokens))


@settings(max_examples=200)
@given(text=TEXT, config=SETTINGS, data=st.data())
def test_what_passes_comes_out_whole_with_every_token_behind_its_text(
    text: str, config: dict[str, Any], data: st.DataObject
) -> None:
    parts = data.draw(parts_of(text))
    way = Feed(Collect(**config))
    spans = tokens_of(parts, text)
    for place, (diff, tokens) in enumerate(parts, 1):
        way.push(diff, tokens, final=place == len(parts))
        assert text.startswith(way.shown.text)
        shown_to = max((end for token, _, end in spans if token in way.shown.tokens), default=0)
        assert shown_to <= len(way.shown.text)
    assert way.shown.text == text
    assert way.shown.tokens == [token for token, _, _ in spans]


@settings(max_examples=200)
@given(text=TEXT, config=SETTINGS, data=st.data())
def test_what_is_held_is_bounded(text: str, config: dict[str, Any], data: st.DataObject) -> None:
    for hook in (Redact(**config), Collect(**config)):
        parts = data.draw(parts_of(text))
        chunk = max(tokens for _, tokens in parts)
        bound = config["max_tokens"] + (2 * config["overlap"] + 2) * chunk + MAX_TEXTLESS
        assert max(feed(hook, parts).held) <= bound
        assert len(hook._windows.sequences) == 0


def test_a_run_of_tokens_without_text_is_bounded_and_its_first_are_dropped() -> None:
    shown = feed(Collect(), [("", 1)] * 500 + [("a", 1), ("", 1)])
    assert max(shown.held) == MAX_TEXTLESS + 1
    assert shown.tokens == [] or shown.tokens[0] >= 500 - MAX_TEXTLESS
    assert shown.text == "a"


@given(text=st.text("ban ", max_size=30), config=SETTINGS, data=st.data())
def test_a_block_withholds_the_phrase_and_ends_the_answer(
    text: str, config: dict[str, Any], data: st.DataObject
) -> None:
    shown = feed(BlockPhrase(**config), data.draw(parts_of(text)))
    before, phrase, _ = text.partition("ban")
    assert shown.text == before
    assert shown.reason == ("phrase" if phrase else None)


@settings(max_examples=200)
@given(text=TEXT, config=SETTINGS, data=st.data())
def test_a_check_sees_what_came_right_before_its_window(
    text: str, config: dict[str, Any], data: st.DataObject
) -> None:
    windows: list[Window] = []

    class Watch(WindowHook):
        def check(self, window: Window) -> str:
            windows.append(window)
            return SECRET.sub("█", window.text)

    # Numbered, so that every stretch of it is found in one place only.
    text = "".join(f"{number:03}{piece}" for number, piece in enumerate(text.split("a")))
    feed(Watch(**config), data.draw(parts_of(text)))
    for window in windows:
        assert window.before + window.text in text
        assert len(window.before) <= config["overlap"]


@settings(max_examples=300)
@given(
    words=st.lists(
        st.sampled_from([[" cat"], [" cat", "s"], [" bob", "cat"], ["."], [" a"], ["\n"]]),
        min_size=1,
        max_size=30,
    ),
    config=SETTINGS,
)
def test_windows_are_cut_between_words_where_chunks_allow_it(
    words: list[list[str]], config: dict[str, Any]
) -> None:
    """So that a pattern may look at the character before it."""
    pattern = re.compile(r"\bcat\b")

    class Word(WindowHook):
        def check(self, window: Window) -> str:
            return pattern.sub("█", window.text)

    tokens = [token for word in words for token in word]
    shown = feed(Word(**config), [(token, 1) for token in tokens])
    assert shown.text == pattern.sub("█", "".join(tokens))


def words(text: str) -> list[Part]:
    return [(word, 1) for word in re.findall(r"\S+\s*", text)]


def test_a_sentence_is_checked_when_it_and_the_overlap_are_there() -> None:
    hook = Collect(flush="sentence", overlap=4)
    way = Feed(hook)
    for text, tokens in words("One two. Thr ee fo ur"):
        way.push(text, tokens)
    assert [window.text for window in hook.windows] == ["One two. Thr "]
    assert way.shown.text == "One two. "
    way.push("", 1, final=True)
    assert [(window.before, window.text) for window in hook.windows[1:]] == [
        ("wo. ", "Thr ee fo ur")
    ]
    assert [window.is_final for window in hook.windows] == [False, True]


def test_size_asks_every_so_many_tokens_and_final_once() -> None:
    parts = [("ab", 1)] * 12
    hook = Collect(flush="size", max_tokens=5, overlap=2)
    assert feed(hook, parts).text == "ab" * 12
    assert [len(window.text) for window in hook.windows] == [10, 12, 6]
    hook = Collect(flush="final", max_tokens=100)
    assert feed(hook, parts).pieces == ["ab" * 12]
    assert len(hook.windows) == 1


def test_at_the_bound_it_checks_and_keeps_the_overlap() -> None:
    hook = Collect(flush="final", max_tokens=1000, max_characters=10, overlap=3)
    way = Feed(hook)
    for _ in range(10):
        way.push("a")
    assert way.shown.text == "a" * 7
    assert way.shown.held[-1] == 3


def test_prefills_only_chunk_is_not_the_answers_end() -> None:
    hook = Collect()
    assert feed(hook, [("a", 1)], phase="prefill").text == "a"
    assert [window.is_final for window in hook.windows] == [False]


async def test_an_async_check_gives_the_same() -> None:
    class Later(AsyncWindowHook):
        async def check(self, window: Window) -> str | None:
            return SECRET.sub("█", window.text)

    parts = words("a x1 b. x22 c. dd x3")
    way = Feed(Later(overlap=4, max_tokens=2))
    for place, (text, tokens) in enumerate(parts, 1):
        await way.push_async(text, tokens, final=place == len(parts))
    assert way.shown.text == "a █ b. █ c. dd █"


def test_sequences_are_apart_and_forgotten() -> None:
    hook = Redact()
    first, second = Feed(hook, request_id=1), Feed(hook, request_id=2)
    first.push("a x1")
    second.push("b ")
    first.push("2", final=True)
    assert (first.shown.text, len(hook._windows.sequences)) == ("a █", 1)
    hook.close(2)
    assert len(hook._windows.sequences) == 0


def test_an_aborted_sequence_is_forgotten_unchecked() -> None:
    hook = Collect()
    way = Feed(hook)
    way.push("a")
    hook(way.chunk("", 0, True, aborted=True))
    assert not hook.windows
    assert len(hook._windows.sequences) == 0


@pytest.mark.parametrize(
    "config",
    [{"max_tokens": 0}, {"overlap": -1}, {"overlap": 1.5}, {"flush": "word"}, {"max_tokens": True}],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=next(iter(config))):
        Collect(**config)


def test_a_check_of_the_other_kind_is_refused() -> None:
    with pytest.raises(LoadError, match="derive from AsyncWindowHook"):

        class WrongPlain(WindowHook):
            async def check(self, window: Window) -> None: ...  # type: ignore[override]

    with pytest.raises(LoadError, match="derive from WindowHook"):

        class WrongAsync(AsyncWindowHook):
            def check(self, window: Window) -> None: ...  # type: ignore[override]


def test_a_check_that_answers_something_else_fails() -> None:
    class Wrong(WindowHook):
        def check(self, window: Window) -> Any:
            return True

    with pytest.raises(TypeError, match="bool"):
        feed(Wrong(), [("a", 1)])


def test_the_documentations_example_does_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "hooks" / "windows.md").read_text()
    code, config = re.findall(r"```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    module = ModuleType("my_pkg.accounts")
    monkeypatch.setitem(sys.modules, "my_pkg", ModuleType("my_pkg"))
    monkeypatch.setitem(sys.modules, "my_pkg.accounts", module)
    exec(code, module.__dict__)
    [entry] = yaml.safe_load(config)["hooks"]["chain"]
    hook = load_hook(entry["path"], entry["config"])
    text = "It is ACC-1234567. " * 9
    assert feed(hook, equal_parts(text, 3)).text == "It is [account]. " * 9
    blocked = feed(hook, equal_parts("The master password is", 3))
    assert (blocked.text, blocked.reason) == ("", "master_password")
