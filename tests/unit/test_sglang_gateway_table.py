"""The table of Tandem beside SGLang's own servers and gateway: whose CPU is whose, and the verdict.
Neither is started here.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULT = {
    "tokens": 1000.0,
    "seconds": 2.0,
    "ttft_ms_p50": 20.0,
    "itl_ms_p50": 4.0,
    "itl_ms_p99": 9.0,
}


@pytest.fixture(scope="module")
def sheet() -> ModuleType:
    path = BENCHMARKS / "sglang_gateway_table.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def row(sheet: ModuleType, *, hops: float, ttft: float) -> Mapping[str, float]:
    """A round in which a token took `hops` microseconds, and the first came after `ttft` ms."""
    cpu = dict.fromkeys(sheet.PARTS, 0.0) | {"router": hops / 1000, "engine": 7.0}
    found: Mapping[str, float] = sheet.row(cpu, {**RESULT, "ttft_ms_p50": ttft})
    return found


def said(sheet: ModuleType, theirs: list[Any], ours: list[Any]) -> list[str]:
    rows = {
        sheet.SGLANG: [row(sheet, hops=hops, ttft=ttft) for hops, ttft in theirs],
        sheet.TANDEM: [row(sheet, hops=hops, ttft=ttft) for hops, ttft in ours],
    }
    return list(sheet.verdict({"8": rows}))


def test_engines_and_detokenizers_are_parts_of_their_own(sheet: ModuleType) -> None:
    assert sheet.part_of("decode", "sglang::scheduler_TP0") == "engine"
    assert sheet.part_of("decode", "VLLM::EngineCore") == "engine"
    assert sheet.part_of("decode", "sglang::detokenizer") == "detokenizer"
    assert sheet.part_of("decode", "python -m sglang.launch_server --port 1") == "decode"
    assert sheet.part_of("frontend", "python -c spawn_main --sglang::scheduler") == "frontend"


def test_a_part_is_the_sum_of_its_processes_and_a_new_one_counts_whole(sheet: ModuleType) -> None:
    before = {1: sheet.Spent("frontend", 3.0), 2: sheet.Spent("engine", 5.0)}
    after = {
        1: sheet.Spent("frontend", 3.5),
        2: sheet.Spent("engine", 6.0),
        3: sheet.Spent("frontend", 0.25),
        4: sheet.Spent("engine", 2.0),
    }
    parts = sheet.difference(before, after)
    assert parts == dict.fromkeys(sheet.PARTS, 0.0) | {"frontend": 0.75, "engine": 3.0}


def test_hops_are_all_parts_but_the_engine(sheet: ModuleType) -> None:
    cpu = {part: 0.001 * 2**place for place, part in enumerate(sheet.PARTS)}
    found = sheet.row(cpu, RESULT)
    assert found["hops"] == pytest.approx(1 + 2 + 4 + 8 + 16)
    assert found["engine"] == pytest.approx(32)
    assert found["speed"] == 500


@pytest.mark.parametrize(
    ("ours", "held"),
    [
        ([(49, 20.0)], True),
        ([(50, 20.0)], False),  # half is not below half
        ([(49, 20.5)], False),  # the first token came later
        ([(10, 20.0), (10, 20.0), (90, 90.0)], True),  # the median of three rounds
    ],
)
def test_the_target_is_below_half_of_the_hops_and_no_later_first_token(
    sheet: ModuleType, ours: list[Any], held: bool
) -> None:
    *_heading, case, last = said(sheet, [(100, 20.0)] * len(ours), ours)
    assert case.startswith("8 ")
    assert case.endswith("held" if held else "MISSED")
    assert last.endswith("held" if held else "MISSED at 8")


def test_a_ratio_is_of_one_round(sheet: ModuleType) -> None:
    lines = said(sheet, [(100, 20.0), (400, 80.0)], [(20, 10.0), (160, 20.0)])
    assert "hops 0.30 (0.20 0.40)   first token 0.38 (0.50 0.25)" in lines[1]


def test_the_table_has_a_line_for_each_stack_of_a_case(sheet: ModuleType) -> None:
    rows = {
        sheet.SGLANG: [row(sheet, hops=100, ttft=20.0)],
        sheet.TANDEM: [row(sheet, hops=30, ttft=10.0)],
    }
    _title, heading, theirs, ours, _note = sheet.table({"8 quick": rows})
    assert heading.split() == [
        "streams", "hops", *sheet.PARTS, "ttft", "itl", "p99", "tokens/s",
    ]  # fmt: skip
    assert theirs.split()[:5] == ["8", "quick", "SGLang", "100.0", "0.0"]
    assert ours.split()[2:6] == ["Tandem", "30.0", "0.0", "30.0"]
    assert len(heading) == len(theirs) == len(ours)


def test_without_sglangs_gateway_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import pathlib, sglang_servers as servers;"
        f"servers.PACKAGES = pathlib.Path({str(tmp_path / 'absent')!r});"
        "servers.check_installed()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "scripts/unpack_wheels.sh sglang-gateway" in ended.stderr


def test_flags_of_a_server_are_what_workers_give_sglang() -> None:
    script = (
        "import json, pathlib, sglang_servers as servers;"
        "options = servers.Options(device='cuda', mem_fraction_static=0.1);"
        "tiny = pathlib.Path('model/tandem-tiny');"
        "print(json.dumps([servers.server_command(role, options, model=tiny,"
        " port=7, bootstrap_port=8, max_sequences=64) for role in servers.PHASES]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    for role, (module, *flags) in zip(("prefill", "decode"), json.loads(ended.stdout), strict=True):
        assert module == "sglang.launch_server"
        given = dict(pairwise(flags))
        assert given["--disaggregation-mode"] == role
        assert given["--disaggregation-transfer-backend"] == "nixl"
        assert (given["--port"], given["--max-running-requests"]) == ("7", "64")
        assert (given["--device"], given["--mem-fraction-static"]) == ("cuda", "0.1")
        assert "--incremental-streaming-output" in flags
        assert "--enable-custom-logit-processor" not in flags
        assert "True" not in flags
        assert "False" not in flags
