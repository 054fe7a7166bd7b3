"""The site's navigation holds each page of docs/ once. `make site` builds the site itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_site import navigation
from docs_site.navigation import INDEX, NAVIGATION, ROOT


def listed(root: Path = ROOT) -> list[str]:
    return [page for each in navigation.sections(root) for page in each.pages]


def left_out(root: Path = ROOT) -> list[str]:
    """Pages of docs/ and of the kits' docs/ that no section lists."""
    pages = [*root.glob("docs/**/*.md"), *root.glob("kits/*/docs/**/*.md")]
    return sorted({str(page.relative_to(root)) for page in pages} - set(listed(root)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a navigation of two pages, one of them by a pattern."""
    (tmp_path / "docs" / "design").mkdir(parents=True)
    (tmp_path / INDEX).write_text("# Index\n")
    (tmp_path / "docs" / "design" / "0001-one.md").write_text("# One\n")
    (tmp_path / NAVIGATION).write_text(
        f'[[section]]\ntitle = "All"\npages = ["{INDEX}", "docs/design/*.md"]\n'
    )
    return tmp_path


@pytest.mark.promise("S5-740")
def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    assert not left_out(), f"add a line for each to {NAVIGATION}"
    assert len(listed()) == len(set(listed()))


@pytest.mark.promise("S5-740")
def test_a_page_that_no_section_lists_is_found(tree: Path) -> None:
    assert left_out(tree) == []
    (tree / "docs" / "design" / "0002-two.md").write_text("# Two\n")
    (tree / "docs" / "new.md").write_text("# New\n")
    assert left_out(tree) == ["docs/new.md"]


@pytest.mark.promise("S5-740")
def test_a_page_that_is_listed_twice_is_refused(tree: Path) -> None:
    with (tree / NAVIGATION).open("a") as file:
        file.write(f'[[section]]\ntitle = "Again"\npages = ["{INDEX}"]\n')
    with pytest.raises(ValueError, match=f"lists twice: {INDEX}"):
        navigation.sections(tree)


@pytest.mark.promise("S5-740")
def test_a_page_that_is_listed_and_not_there_is_refused(tree: Path) -> None:
    with (tree / NAVIGATION).open("a") as file:
        file.write('[[section]]\ntitle = "More"\npages = ["docs/gone.md"]\n')
    with pytest.raises(ValueError, match=r"not there: docs/gone\.md"):
        navigation.sections(tree)


def test_a_page_that_is_listed_by_its_name_is_not_listed_by_a_pattern(tree: Path) -> None:
    with (tree / NAVIGATION).open("a") as file:
        file.write('[[section]]\ntitle = "First"\npages = ["docs/design/0001-one.md"]\n')
    assert [each.pages for each in navigation.sections(tree)] == [
        (INDEX,),
        ("docs/design/0001-one.md",),
    ]


@pytest.mark.promise("S5-741")
def test_each_question_of_the_index_names_a_page_of_the_site() -> None:
    asked = dict(navigation.questions())
    assert len(asked) >= 10
    assert set(asked.values()) <= set(listed())


@pytest.mark.promise("S5-741")
def test_a_question_without_a_page_is_refused(tree: Path) -> None:
    (tree / INDEX).write_text("# Index\n\n| ask | read |\n| --- | --- |\n| Where to? | nowhere |\n")
    with pytest.raises(ValueError, match=r"'Where to\?' names no page"):
        list(navigation.questions(tree))


def test_every_page_has_a_title() -> None:
    for page in listed():
        assert navigation.title((ROOT / page).read_text(encoding="utf-8")), page


def test_a_summary_is_the_first_sentence_of_prose() -> None:
    text = (
        "# A `title`\n\n![a picture](x.png)\n\n    code\n\n```python\nimport one\n\nimport two\n"
        "```\n\nSee [one](x.md) of\n**`two`**: both. More.\n"
    )
    assert navigation.title(text) == "A title"
    assert navigation.summary(text) == "See one of `two`: both."
    assert navigation.summary("# Only a title\n") == ""


def test_modules_of_the_reference_are_there() -> None:
    for section in navigation.sections():
        for names in section.modules.values():
            for name in names:
                path = name.replace(".", "/")
                found = [*ROOT.glob(f"{path}*"), *ROOT.glob(f"kits/*/{path}*")]
                assert {each.suffix for each in found} & {"", ".py"}, name
