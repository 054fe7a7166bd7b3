"""What `make test` does with tests that fail: `--rerun-failed` of conftest.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from skip_reasons import counted

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("conftest", "xdist", "pytest_timeout", "pytest_asyncio")
UNSTEADY = """
import os
from pathlib import Path

import pytest


def first(name):
    mark = Path(__file__).with_name(name)
    before = mark.exists()
    mark.touch()
    return not before


@pytest.mark.parametrize("odd", ["a b", "[x]::y", "ü"])
def test_depends_on_the_clock(odd):
    assert not first(f"clock {ord(odd[0])}"), "too late"


def test_ends_its_process_once():
    if first("crash"):
        os._exit(3)


@pytest.fixture
def leaking():
    yield
    assert not first("leak")


def test_leaks_once(leaking):
    pass


@pytest.mark.timeout(0.2)
def test_hangs_once():
    while first("hang"):
        pytest.importorskip("threading").Event().wait()


@pytest.mark.skipif(True, reason="needs a GPU")
@pytest.mark.parametrize("kind", range(3))
def test_of_a_gpu(kind):
    raise AssertionError
"""
HELPERS = (ROOT / "tests" / "outcomes", ROOT / "tests" / "preloaded")
BROKEN = """
import os
import pytest

def test_fails_for_good():
    assert 1 == 2, "for good"

def test_ends_every_process():
    os._exit(3)

def test_passes():
    pass

def test_skips_the_second_time():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("alone")
    raise AssertionError
"""


def ran(folder: Path, *flags: str, **files: str) -> tuple[int, str]:
    """The status of a run of these files, and what it printed."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    plugins = [f"-p{name}" for name in PLUGINS]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--rerun-failed", *flags],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *HELPERS))),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-Wignore -pno:cacheprovider",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stdout + ended.stderr


def unsteady(output: str) -> set[str]:
    return set(re.findall(r"^unsteady: \S+?::(.+)$", output, re.MULTILINE))


def counts(output: str) -> str:
    """The closing line, without its time."""
    return re.sub(r"(?m)^=+ (.*) in .*$", r"\1", output.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    folder = tmp_path_factory.mktemp("mixed")
    return ran(folder, "-n1", test_unsteady=UNSTEADY, test_broken=BROKEN)


@pytest.mark.promise("S5-540")
def test_what_fails_and_then_passes_alone_is_unsteady_and_named_with_its_reason(
    mixed: tuple[int, str],
) -> None:
    _, output = mixed
    assert unsteady(output) == {
        "test_depends_on_the_clock[a b]: AssertionError: too late",
        "test_depends_on_the_clock[[x]::y]: AssertionError: too late",
        "test_depends_on_the_clock[\\xfc]: AssertionError: too late",
        "test_leaks_once: AssertionError: assert not True",
        "test_hangs_once: Failed: Timeout (>0.2s) from pytest-timeout.",
        *re.findall(r"test_ends_its_process_once: worker 'gw\d' crashed while .*", output),
    }
    assert len(unsteady(output)) == 6


@pytest.mark.promise("S5-540")
def test_what_fails_again_fails_the_run_and_the_closing_line_counts_it_alone(
    mixed: tuple[int, str],
) -> None:
    status, output = mixed
    assert status == 1
    assert counts(output) == "3 failed, 1 passed, 3 skipped, 6 unsteady"
    assert set(re.findall(r"^FAILED \S+::(\w+) ", output, re.MULTILINE)[-3:]) == {
        "test_fails_for_good",
        "test_ends_every_process",
        "test_skips_the_second_time",
    }


@pytest.mark.promise("S5-541")
def test_skipped_tests_are_counted_by_reason(mixed: tuple[int, str]) -> None:
    _, output = mixed
    assert re.findall(r"^skipped: +(.+)$", output, re.MULTILINE) == ["3 needs a GPU"]


@pytest.mark.promise("S5-541")
def test_the_most_frequent_reason_comes_first() -> None:
    reports = [("f", 1, "Skipped: rare"), *[("f", 2, "Skipped: common: twice")] * 2, "bare"]
    lines = counted(SimpleNamespace(longrepr=each) for each in reports)
    assert [line.split(maxsplit=1)[1] for line in lines] == ["2 common: twice", "1 rare", "1 bare"]


@pytest.mark.promise("S5-540")
def test_a_run_whose_failures_are_all_unsteady_passes(tmp_path: Path) -> None:
    status, output = ran(tmp_path, "-pno:xdist", "-kclock", test_unsteady=UNSTEADY)
    assert (status, counts(output)) == (0, "6 deselected, 3 unsteady")


@pytest.mark.promise("S5-540")
def test_nothing_runs_once_more_where_too_much_failed(tmp_path: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(21))\ndef test_it(n): assert 0"
    status, output = ran(tmp_path, "-pno:xdist", test_many=many)
    assert (status, counts(output)) == (1, "21 failed")
    assert "21 failed: too many to run once more" in output
    assert "once more, alone" not in output


@pytest.mark.promise("S5-540")
def test_nothing_runs_once_more_where_not_all_has_run(tmp_path: Path) -> None:
    status, output = ran(tmp_path, "-pno:xdist", "-x", test_unsteady=UNSTEADY)
    assert (status, counts(output)) == (1, "1 failed")
    assert "once more, alone" not in output
