"""A measured table says of which commit it is, and whether its code has changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check_measured
import pytest
from one_case import one_case

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    command = ("git", *name, *arguments)
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose page measured code/fast.py."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "code" / "fast.py").write_text("one = 1\n")
    (tmp_path / "other.py").write_text("other = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "measured")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()[:8]
    page(tmp_path).write_text(f"# Fast\n\nMeasured at commit `{commit}` of `code`.\n\n| a |\n")
    return tmp_path


def page(tree: Path) -> Path:
    return tree / "docs" / "page.md"


def test_a_table_is_good_while_what_it_measured_stays(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "other.py").write_text("other = 2\n")
    assert check_measured.main(write=False, root=tree) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.promise("S5-425")
def test_a_table_that_is_older_than_its_code_has_to_say_so(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "code" / "fast.py").write_text("one = 2\n")
    assert check_measured.main(write=False, root=tree) == 1
    assert "docs/page.md: older than its code: code" in capsys.readouterr().out
    assert check_measured.main(write=True, root=tree) == 0
    assert ", before later changes of `code`." in page(tree).read_text()
    assert check_measured.main(write=False, root=tree) == 0
    assert "older than its code" in capsys.readouterr().out


def test_a_table_that_was_measured_anew_says_no_longer_that_it_is_old(tree: Path) -> None:
    page(tree).write_text(page(tree).read_text().replace("` of", "`, before later changes of"))
    assert check_measured.main(write=False, root=tree) == 1
    assert check_measured.main(write=True, root=tree) == 0
    assert "later changes" not in page(tree).read_text()


def test_a_history_without_the_commit_decides_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shallow clone, and of an archive."""
    page(tree).write_text("Measured at commit `0123456789` of `code`.\n")
    assert check_measured.main(write=False, root=tree) == 0
    assert "0123456789 is not in the history here" in capsys.readouterr().out


@one_case("path", check_measured.pages(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_measured_is_there(path: Path) -> None:
    """Each line that begins as the convention does is read by it, and its paths exist."""
    text = path.read_text(encoding="utf-8")
    found = list(check_measured.lines(text))
    assert len(found) == sum(line.startswith("Measured at commit ") for line in text.splitlines())
    missing = [each for one in found for each in one.paths if not (ROOT / each).exists()]
    assert missing == []


def test_tables_of_a_machine_say_what_they_measured() -> None:
    """Those that begin with the line of benchmarks/machine.py, one in each page at least."""
    begins = "```\nmachine: "
    pages = [each for each in check_measured.pages(ROOT) if begins in each.read_text()]
    assert len(pages) > 3
    silent = [each.name for each in pages if not check_measured.LINE.search(each.read_text())]
    assert silent == []
