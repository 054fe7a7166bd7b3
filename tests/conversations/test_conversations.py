"""Prompts are the same with the store of prefixes and without, and the comparison finds bugs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conversing.compared import BATCH, Family
from conversing.families import VARIANTS, Left, folder_of
from tokenizers import AddedToken

from tandem.text import seams
from tandem.text.seams import Seams
from tandem_frontend.openai import prefixes

SEED = 37
Patch = pytest.MonkeyPatch


@pytest.mark.promise("S5-665")
@pytest.mark.parametrize("name", VARIANTS)
def test_random_conversations_have_the_same_prompts_with_the_store(
    name: str, tmp_path: Path
) -> None:
    tally = Family(name, folder_of(name, tmp_path)).compare(SEED, 0)
    assert tally.differences == []
    assert tally.conversations == BATCH
    assert tally.known > tally.tokens / 20
    assert tally.refused < tally.requests / 20
    assert tally.checks


def before_marks_that_take_blanks(patch: Patch) -> None:
    init = Seams.__init__

    def without(self: Seams, added: Sequence[AddedToken]) -> None:
        init(self, [_without_lstrip(token) for token in added])

    patch.setattr(Seams, "__init__", without)


def _without_lstrip(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        normalized=token.normalized,
        rstrip=token.rstrip,
        single_word=token.single_word,
    )


def within_a_word(patch: Patch) -> None:
    patch.setattr(seams, "_NEITHER", re.compile(""))


def behind_its_mark(patch: Patch) -> None:
    cuts = Seams.cuts
    patch.setattr(Seams, "cuts", lambda *given: [at + 1 for at in cuts(*given)])


def known_by_itself(patch: Patch) -> None:
    names = prefixes._names

    def each(text: str, cuts: Sequence[int], root: bytes) -> Iterator[bytes]:
        for begin, end in zip([0, *cuts], cuts, strict=False):
            yield from names(text[begin:end], [end - begin], root)

    patch.setattr(prefixes, "_names", each)


def known_without_what_is_at_its_beginning(patch: Patch) -> None:
    """Such as tools, and what the template's options write."""
    names = prefixes._names

    def rest(text: str, cuts: Sequence[int], root: bytes) -> Iterator[bytes]:
        return names(" " * cuts[0] + text[cuts[0] :], cuts, root)

    patch.setattr(prefixes, "_names", rest)


def known_without_its_salt(patch: Patch) -> None:
    names = prefixes._names
    patch.setattr(prefixes, "_names", lambda text, cuts, root: names(text, cuts, b""))


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("tiny, marks that take blanks", before_marks_that_take_blanks),
        ("tiny, marks that take blanks", within_a_word),
        ("tiny", behind_its_mark),
        ("tiny", known_by_itself),
        ("tiny", known_without_what_is_at_its_beginning),
        ("tiny", known_without_its_salt),
    ],
)
def test_a_bug_is_found(
    name: str, bug: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    family = Family(name, folder_of(name, tmp_path))
    assert any(family.compare(SEED, batch).differences for batch in range(8))


def test_conversations_come_of_the_seed_alone(tmp_path: Path) -> None:
    family = Family("tiny", folder_of("tiny", tmp_path))
    first = family.compare(SEED, 1)
    assert first == family.compare(SEED, 1)
    assert first != family.compare(SEED + 1, 1)


def test_a_published_family_is_left_out_by_name_where_npm_is_missing(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Left, match="there is no npm"):
        folder_of("qwen3", tmp_path)
