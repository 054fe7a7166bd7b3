"""Every edge takes some hundred spoilt inputs, and fuzzing finds what it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fuzzing import child, described
from fuzzing.found import Findings
from fuzzing.progress import Progress
from fuzzing.target import KINDS, Kind
from fuzzing.trial import Trial
from fuzzing.watch import Plan, carry_out

NAMES = [target.name for target in child.targets()]
INPUTS = 300
EXAMPLES = 10
SECONDS = 60.0
SEED = 20


def _carry_out(name: str, folder: Path, **changes: object) -> Progress:
    given = {"seed": SEED, "until": INPUTS, "seconds": SECONDS}
    return carry_out(Plan(name=name, folder=folder, **given | changes))  # type: ignore[arg-type]


def _found(folder: Path, name: str) -> dict[Kind, int]:
    findings = Findings(folder, name)
    return {kind: count for kind in KINDS if (count := findings.count(kind))}


@pytest.mark.promise("S5-426")
@pytest.mark.parametrize("name", NAMES)
def test_no_spoilt_input_does_more_than_be_refused(name: str, tmp_path: Path) -> None:
    progress = _carry_out(name, tmp_path)
    told = [path.read_text() for path in tmp_path.glob("found/*.txt")]
    assert (progress.done, told) == (INPUTS, [])


def test_answers_are_as_openapi_json_says() -> None:
    """`make fuzz` tries the limits of every field too."""
    assert described.hold(seed=SEED, examples=EXAMPLES, whole=False)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_come_of_the_seed_alone(name: str) -> None:
    target = child.find(name)
    corpus = target.corpus()
    first, again = ([target.input(5, n, corpus) for n in range(40)] for _ in range(2))
    assert first == again
    assert first != [target.input(6, n, corpus) for n in range(40)]
    assert len(set(first)) > 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("RAISE", "fault"),
        ("LOG", "fault"),
        ("FIVE", "5xx"),
        ("OPEN", "leak"),
        ("DESCRIPTORS", "leak"),
        ("MEMORY", "leak"),
    ],
)
def test_what_an_input_does_is_found_once(name: str, kind: Kind, tmp_path: Path) -> None:
    name = f"bad_targets:{name}"
    progress = _carry_out(name, tmp_path, until=400)
    assert (progress.done, _found(tmp_path, name)) == (400, {kind: 1})


def test_a_large_input_that_came_last_is_no_leak(tmp_path: Path) -> None:
    findings = Findings(tmp_path, "bad_targets:NOTHING")
    trial = Trial(child.find("bad_targets:NOTHING"), findings)
    for _ in range(200):
        trial.give(b"\1")
    trial.give(b"\1" * 100_000_000)
    trial.close()
    assert [findings.count(kind) for kind in KINDS] == [0] * len(KINDS)


def test_no_change_makes_an_input_larger_than_a_body_may_be() -> None:
    target = replace(child.find("bad_targets:NOTHING"), spoil=lambda data, random: data * 2**10)
    sizes = {len(target.input(1, number, [b"x"])) for number in range(50)}
    assert sizes == {2**10, 2**20}


def test_an_input_that_ends_the_process_is_kept_and_passed_over(tmp_path: Path) -> None:
    name = "bad_targets:CRASH"
    progress = _carry_out(name, tmp_path, until=8)
    found = _found(tmp_path, name)
    assert progress.done == 8
    assert set(found) == {"crash"}
    spoilt = [path.read_bytes()[0] % 3 for path in tmp_path.glob("found/crash-*.input")]
    assert spoilt == [0] * found["crash"]


def test_an_input_that_never_ends_is_kept_and_passed_over(tmp_path: Path) -> None:
    name = "bad_targets:HANG"
    progress = _carry_out(name, tmp_path, until=4, hang_seconds=0.5)
    assert progress.done == 4
    assert set(_found(tmp_path, name)) == {"hang"}


def test_a_run_goes_on_where_it_ended_and_another_seed_begins_anew(tmp_path: Path) -> None:
    name = "bad_targets:NOTHING"
    assert _carry_out(name, tmp_path, until=100).done == 100
    assert _carry_out(name, tmp_path, until=50).done == 100
    assert _carry_out(name, tmp_path, until=150).done == 150
    assert _carry_out(name, tmp_path, until=30, seed=SEED + 1).done == 30
