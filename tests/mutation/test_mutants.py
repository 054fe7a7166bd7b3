"""A fixed dozen of deliberate bugs is noticed by the simulation.

`make mutants` tries all, and `make check` sees that each can be applied.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mutants.overlay import COPIED, Overlay
from mutants.promised import broken_promises
from mutants.table import ROOT, Mutant, faults, load
from mutants.trial import run

SEEDS = 6
"""Half as many again as it takes until the last of the dozen is noticed."""
HARMLESS = Mutant(
    path="router/tandem_router/core/admission.py",
    breaks="nothing",
    function="refusal",
    before="len(state.waiting)",
    after="0 + len(state.waiting)",
    tests=(),
)


@pytest.fixture(scope="module")
def table() -> list[Mutant]:
    return load()


@pytest.fixture(scope="module")
def dozen(table: list[Mutant]) -> list[Mutant]:
    return [mutant for mutant in table if mutant.short]


def test_the_table_reaches_every_part(table: list[Mutant]) -> None:
    assert len(table) >= 60
    for part in (
        "router/tandem_router/core/",
        "router/tandem_router/relay.py",
        "tandem/worker/core/",
        "decode_worker/",
        "prefill_worker/",
        "tandem/upstream/",
        "frontend/",
    ):
        assert any(mutant.path.startswith(part) for mutant in table), part


def test_no_mutant_is_put_into_the_working_tree(table: list[Mutant]) -> None:
    """What an overlay does not copy is a link to it."""
    assert {Path(mutant.path).parts[0] for mutant in table} <= {*COPIED}


def test_a_mutant_that_fits_no_longer_is_named() -> None:
    path = "router/tandem_router/core/admission.py"
    gone = Mutant(path=path, breaks="a", before="no_such_name", after="None", tests=())
    often = Mutant(path=path, breaks="b", before="self", after="None", tests=())
    broken = Mutant(
        path=path, breaks="c", function="Nobody.here", before="a", after="b", tests=("no",)
    )
    found = faults([gone, often, broken, broken])
    assert found[0] == f"{path}: a: its `before` is there 0 times, not once"
    assert found[1].startswith(f"{path}: b: its `before` is there")
    assert found[2] == f"{path}: c: there is no Nobody.here"
    assert "there is no no" in found[3]
    assert found[-1] == "router/tandem_router/core/admission.py: c: is there twice"


def test_a_promise_needs_a_bug_and_the_bug_a_test_of_that_promise() -> None:
    marked, other = "tests/unit/test_a.py::test_marked", "tests/unit/test_a.py::test_other"
    bug = Mutant(
        path="p.py", breaks="b", before="", after="", simulated=False, promise="S0-001",
        tests=(f"{marked}[a case]", other),
    )  # fmt: skip
    found = broken_promises([bug], {"S0-001": {marked}}, ["S0"])
    assert found[0] == f"p.py: b: {other} is not marked with S0-001"
    assert found[1] == "S0-002: no deliberate bug names it"
    everywhere = replace(bug, simulated=True, tests=())
    assert broken_promises([everywhere], {}, []) == ["p.py: b: its tests alone are asked"]


def test_an_overlay_is_broken_for_as_long_as_it_is_asked_to_be(
    dozen: list[Mutant], tmp_path: Path
) -> None:
    mutant = dozen[0]
    working = (ROOT / mutant.path).read_text()
    overlay = Overlay(tmp_path)
    with overlay.broken_by(mutant):
        assert (tmp_path / mutant.path).read_text() == mutant.applied(working) != working
        assert (ROOT / mutant.path).read_text() == working
    assert (tmp_path / mutant.path).read_text() == working
    where = "import os, sys, tandem_router as it; sys.exit(os.getcwd() not in it.__file__)"
    assert overlay.passes(["-c", where], seconds=9)
    assert not overlay.passes(["-c", "while True: pass"], seconds=1)


@pytest.mark.timeout(300)
def test_the_simulation_notices_a_dozen_bugs_and_takes_nothing_harmless_for_one(
    dozen: list[Mutant],
) -> None:
    assert len(dozen) == 12
    results = run([*dozen, HARMLESS], seeds=SEEDS, processes=2, with_tests=False)
    survived = {str(result.mutant) for result in results if result.killer == "nothing"}
    assert survived == {str(HARMLESS)}
