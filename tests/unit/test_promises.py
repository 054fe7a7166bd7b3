"""The list of promises and the tests that prove them name each other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    path = Path(__file__).parents[1] / "promises.py"
    spec = importlib.util.spec_from_file_location("tandem_promises", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    return _load()


def test_every_promise_has_a_test_or_a_written_gap(promises: ModuleType) -> None:
    covered = promises.proofs().keys() | promises.gaps().keys()
    assert [p.id for p in promises.PROMISES if p.id not in covered] == []


def test_every_test_names_promises_that_are_listed(promises: ModuleType) -> None:
    listed = {p.id for p in promises.PROMISES}
    assert {id: tests for id, tests in promises.proofs().items() if id not in listed} == {}


def test_no_gap_is_written_for_a_promise_that_is_not_listed(promises: ModuleType) -> None:
    listed = {p.id for p in promises.PROMISES}
    assert promises.GAPS.keys() <= listed


def test_promise_ids_are_unique(promises: ModuleType) -> None:
    ids = [p.id for p in promises.PROMISES]
    assert len(ids) == len(set(ids))


@pytest.fixture(params=["tests/unit", "kits/one/tests"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One that is searched for tests, in a tree of its own."""
    (tmp_path / request.param).mkdir(parents=True)
    return str(request.param)


def test_a_promise_mark_is_found_where_it_stands(
    folder: str, promises: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / folder / "test_one.py").write_text(
        'import pytest\n@pytest.mark.promise("S0-001", "S0-002")\nasync def test_it(): ...\n'
    )
    assert promises.proofs(tmp_path) == {
        "S0-001": {f"{folder}/test_one.py::test_it"},
        "S0-002": {f"{folder}/test_one.py::test_it"},
    }


def test_promises_of_a_trace_are_those_of_its_case_and_of_its_file(
    folder: str, promises: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / folder / "its_traces").mkdir()
    (tmp_path / folder / "its_traces" / "one.txt").write_text(
        "What it is.\npromises: S0-001\n\n== It is so. (S0-002, S0-003)\n\n== It is so too.\n"
    )
    first, second = (f"{folder}/its_traces/one.txt::It is so{too}." for too in ("", " too"))
    assert promises.proofs(tmp_path) == {
        "S0-001": {first, second},
        "S0-002": {first},
        "S0-003": {first},
    }


@pytest.mark.parametrize("marks", ["{}", "[{}, pytest.mark.timeout(9)]"])
def test_a_mark_of_a_module_is_that_of_each_of_its_tests(
    marks: str, folder: str, promises: ModuleType, tmp_path: Path
) -> None:
    mark = marks.format('pytest.mark.promise("S0-001")')
    (tmp_path / folder / "test_one.py").write_text(
        f"import pytest\npytestmark = {mark}\ndef help(): ...\ndef test_it(): ...\n"
    )
    assert promises.proofs(tmp_path) == {"S0-001": {f"{folder}/test_one.py::test_it"}}
