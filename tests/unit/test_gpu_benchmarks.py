"""The benchmarks of a GPU session run without a GPU too, in short: so they are ready for one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.sglang, pytest.mark.long]


def figures(folder: Path, name: str, *flags: str, status: int = 0) -> tuple[str, dict[str, Any]]:
    """What one of them prints before it ends with `status`, and the figures that it writes."""
    file = folder / "figures.json"
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "gpu" / f"{name}.py")]
    ended = subprocess.run(
        [*command, "--json", str(file), *flags], capture_output=True, text=True, timeout=280
    )
    assert ended.returncode == status, ended.stderr[-3000:]
    return ended.stdout, json.loads(file.read_text())


def test_processors_without_a_gpu_say_the_hosts_time_and_no_verdict(tmp_path: Path) -> None:
    said, found = figures(
        tmp_path,
        "processors",
        "--device=cpu",
        "--vocabulary=2100",
        "--rows=1,3",
        "--limit-ms=500",
    )
    assert len({row["kind"] for row in found["rows"]}) == 17
    assert all(row["us"] > 0 and "waits" not in row for row in found["rows"])
    assert "no verdict" in said
    assert [len(each["rows"]) for each in found["judged"]] == [1, 1, 3, 3]
    assert "Verdict: a limit of 500 ms counts a processor's own time" in said


WAITS = {"us": 900.0, "behind_us": 9_850.0, "busy_us": 10_000.0, "waits": ["rows.py:7"]}
UNSEEN = {**WAITS, "waits": []}
LONG = {"us": 56_000.0, "behind_us": 64_000.0, "busy_us": 112_000.0, "waits": []}
"""A step that varies by more than half of the shortest kernel."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """One of them in this process, by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    return importlib.import_module


@pytest.mark.parametrize(
    ("bias", "watermark", "said"),
    [
        (WAITS, LONG, "1 of 15 kinds wait (bias; 1 time(s) a step at most, at rows.py:7)"),
        (UNSEEN, LONG, "1 of 15 kinds wait (bias; unseen by torch: bias)"),
        (WAITS, UNSEEN, "at rows.py:7; unseen by torch: watermark)"),
        (LONG, LONG, "no processor makes the host wait"),
    ],
)
def test_a_kind_waits_where_the_host_comes_back_with_the_gpu(
    bias: dict[str, Any], watermark: dict[str, Any], said: str, module: Callable[[str], Any]
) -> None:
    found = [{"kind": "bias", **bias}, {"kind": "watermark", **watermark}]
    assert said in module("processors").verdict(found)


def test_every_page_size_moves_the_same_kv_and_large_pages_in_fewer_pieces(tmp_path: Path) -> None:
    said, found = figures(
        tmp_path, "handover", "--device=cpu", "--layers=2", "--tokens=256", "--prompts=1,64"
    )
    pieces = {(row["tokens"], row["page"]): row["pieces"] for row in found["rows"]}
    assert pieces == {(1, 1): 4, (1, 0): 4, (64, 1): 256, (64, 16): 16, (64, 64): 4, (64, 0): 4}
    assert "Verdict: 64 scattered tokens" in said


def test_every_way_to_sample_is_timed_and_compared_alone(tmp_path: Path) -> None:
    said, found = figures(tmp_path, "sampler", "--device=cpu", "--vocabulary=256", "--rows=2")
    ways = {name for name, *_figures in found["costs"]}
    assert {"SGLang's PyTorch, unseeded", "SGLang's PyTorch, seeded"} < ways
    assert all(us > 0 for *_way, us, _mib, _waits in found["costs"])
    assert "Verdict: seeded_sampling=true, the default: held; 0 of 16 rows drew another" in said


@pytest.mark.parametrize(
    ("seeded_us", "others", "held"), [(256.0, 0, True), (300.0, 0, False), (256.0, 1, False)]
)
def test_seeds_stay_the_default_where_they_cost_little_and_rows_draw_as_alone(
    seeded_us: float, others: int, held: bool, module: Callable[[str], Any]
) -> None:
    sampler = module("sampler")
    costs = {
        (sampler.TANDEMS, 64, "unfiltered"): seeded_us,
        (sampler.FLASHINFERS, 64, "unfiltered"): 190.0,
        (sampler.PYTORCHS, 64, "unfiltered"): 1.0,
        (sampler.TANDEMS, 64, "filtered"): 1_466.0,
        (sampler.FLASHINFERS, 64, "filtered"): 201.0,
    }
    drawn = [["SGLang's PyTorch, seeded", "float32", 8, 8], [sampler.TANDEMS, "float32", 8, others]]
    right, said = sampler.verdict("cuda", costs, drawn)
    assert right is held
    assert f"default: {'held' if held else 'MISSED'}; {others} of 8 rows drew another" in said
    assert f"unfiltered {seeded_us:.0f} µs of 64 rows (190 unseeded)" in said
    assert "; filtered 1466 µs of 64 rows (201 unseeded)" in said


PATIENT = "--factor=20"
"""First requests of a machine that has much else to do."""


def test_first_requests_of_a_pair_are_timed_and_answers_hold_among_others(tmp_path: Path) -> None:
    flags = ("--device=cpu", "--engine-option=dtype=float32", "--requests=4", PATIENT)
    said, found = figures(tmp_path, "serving", *flags)
    assert len(found["first"]) == 10
    assert [same for _kind, _count, same, _text in found["together"]] == [5] * 7
    assert "where 20 may be: held." in said
    assert "alone: held." in said


def test_a_first_request_that_is_slow_is_missed(tmp_path: Path) -> None:
    said, _found = figures(
        tmp_path, "serving", "--engine=sim", "--requests=4", "--factor=0", status=1
    )
    assert "where 0 may be: MISSED." in said
    assert "alone: held." in said


def test_an_answer_that_is_another_one_among_neighbours_is_missed(
    module: Callable[[str], Any],
) -> None:
    first = [{"ttft_ms": 20.0, "ms": 100.0}]
    cells: list[list[object]] = [["greedy", 5, 5, "'a'"], ["seeded", 5, 5, "'b'"]]
    assert module("serving").verdict(first, cells, 1.5)[0]
    cells[1][2] = 3
    held, said = module("serving").verdict(first, cells, 1.5)
    assert not held
    assert "1.00 times, where 1.5 may be: held." in said
    assert "MISSED by seeded (3 of 5)" in said


def test_an_answer_that_fails_is_not_as_alone(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = module("serving")
    monkeypatch.setattr(serving, "answer", lambda *_: f"{serving.FAILED}no worker is free")
    cells = serving.alone_and_together(None, "tandem-tiny")
    assert [same for _kind, _count, same, _text in cells] == [0] * 7


CONTRACT = "tests/contract/test_prompt_logprobs.py"


def test_the_contract_is_held_where_all_tests_pass(tmp_path: Path) -> None:
    said, found = figures(tmp_path, "contract", "--device=cpu", "--engine=sim", CONTRACT)
    assert found["files"] == [["test_prompt_logprobs.py", 2, 0, 0]]
    assert "for cpu keep the contract: held, by 2 tests of 2." in said


def test_files_of_the_contract_can_be_tested_at_once(tmp_path: Path) -> None:
    other = "tests/contract/test_lora.py"
    flags = ("--device=cpu", "--engine=sim", "--at-once=2")
    said, found = figures(tmp_path, "contract", *flags, CONTRACT, other)
    assert sorted(found["files"]) == [
        ["test_lora.py", 5, 0, 0],
        ["test_prompt_logprobs.py", 2, 0, 0],
    ]
    assert "held, by 7 tests of 7." in said


def test_the_contract_is_missed_by_tests_that_fail(tmp_path: Path) -> None:
    unknown = "--engine-option=speed=11"
    said, found = figures(
        tmp_path, "contract", "--device=cpu", "--engine=sim", unknown, CONTRACT, status=1
    )
    assert found["files"] == [["test_prompt_logprobs.py", 0, 2, 0]]
    assert "for cpu keep the contract: MISSED by test_each_token_of_a_prompt" in said


def test_answers_without_drafts_are_themselves_and_in_form(tmp_path: Path) -> None:
    said, found = figures(tmp_path, "drafts", "--device=cpu", "--drafts=none")
    ((name, _seconds, same, lead, kept, accepted),) = found["drafts"]
    assert (name, same, lead, kept, accepted) == ("none", 8, 0, 8, 1)
    assert "their form: held." in said


def test_an_answer_parts_where_the_first_token_is_another(module: Callable[[str], Any]) -> None:
    drafts = module("drafts")
    plain = drafts.Answer("abcd", [3.0, 0.02, 4.0, 5.0])
    assert drafts.parted(plain, plain) == 0
    assert drafts.parted(plain, drafts.Answer("axyd", [9.0] * 4)) == 0.02
    assert drafts.parted(plain, drafts.Answer("abxy", [9.0] * 4)) == 4.0


@pytest.mark.parametrize(
    ("same", "lead", "kept", "held"), [(7, 0.02, 8, True), (7, 0.2, 8, False), (8, 0.0, 7, False)]
)
def test_drafts_may_decide_near_ties_and_must_keep_forms(
    module: Callable[[str], Any], same: int, lead: float, kept: int, held: bool
) -> None:
    rows = [["none", 30.0, 8, 0.0, 8, 1.0], ["NGRAM", 30.0, same, lead, kept, 2.5]]
    right, said = module("drafts").verdict(rows)
    assert right is held
    assert ("MISSED with NGRAM" in said) is not held


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"name": "a"}',
        '{"name": 3, "age": 3}',
        '{"name": "thirteen long", "age": 3}',
        '{"name": "a", "age": 4}',
        '{"name": "a", "age": 3, "more": 1}',
    ],
)
def test_what_is_not_the_schemas_does_not_fit(module: Callable[[str], Any], text: str) -> None:
    assert module("drafts").fits('{"name": "twelve chars", "age": 21}')
    assert not module("drafts").fits(text)
