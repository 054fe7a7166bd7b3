"""Whether a pair of real workers keeps the contract that routers rely on: the tests of
tests/contract that ask nothing of a machine but SGLang, with the engine options that Tandem chooses
for its device.

Prints how the tests of each file ended, and exits with 1 where one failed. Needs SGLang and the
packages of the tests (the extra `dev`). The files that are at once have a pair or two each, which
share the GPU.

    python benchmarks/gpu/contract.py --engine-option mem_fraction_static=0.2
    python benchmarks/gpu/contract.py --engine-option mem_fraction_static=0.05 --at-once 6
    python benchmarks/gpu/contract.py --engine sim tests/contract/test_prompt_logprobs.py
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import gpu
import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = tuple(
    str(ROOT / f"tests/contract/test_{name}.py")
    for name in (
        "worker_contract",
        "kv_really_crossed",
        "engine_load",
        "logits_pair",
        "prompt_logprobs",
        "rows",
    )
)
OUTCOMES = ("passed", "failed", "skipped")
OF_ENGINE = {"sglang": "sglang", "sim": "not sglang"}
"""By engine: the marks of its tests."""


class Ended:
    """A plugin of pytest that keeps how each test ended, by its id."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One report each of a test's set-up, call and tear-down."""
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.nodeid] = report.outcome


def run(
    engine: str, options: list[str], files: list[str], at_once: int
) -> tuple[int, dict[str, str]]:
    """pytest's exit status, and how each test ended, by its id."""
    ended = Ended()
    if options:
        os.environ["TANDEM_ENGINE_OPTIONS"] = ",".join(options)
    chosen = ["-m", OF_ENGINE[engine], "-p", "no:cacheprovider"]
    apart = ["-n", str(at_once), "--dist=loadfile"] if at_once > 1 else []
    status = pytest.main([*chosen, *apart, *files], [ended])
    return int(status), ended.tests


def counted(tests: Mapping[str, str]) -> list[list[object]]:
    """A row of figures for each file."""
    files: dict[str, Counter[str]] = {}
    for test, outcome in tests.items():
        files.setdefault(Path(test.partition("::")[0]).name, Counter())[outcome] += 1
    return [[name, *(count[each] for each in OUTCOMES)] for name, count in files.items()]


def verdict(status: int, tests: Mapping[str, str], device: str) -> tuple[bool, str]:
    """Whether Tandem's defaults on the device hold, and what the tests say of them. `status`:
    pytest's.
    """
    failed = [test.partition("::")[2] for test, outcome in tests.items() if outcome == "failed"]
    passed = sum(outcome == "passed" for outcome in tests.values())
    held = status == 0 and passed > 0
    if held:
        how = f"held, by {passed} tests of {len(tests)}"
    else:
        how = "MISSED by " + (", ".join(failed) or f"pytest, which ended with {status}")
    return held, f"Verdict: workers with Tandem's defaults for {device} keep the contract: {how}."


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--engine", choices=tuple(OF_ENGINE), default="sglang")
    parser.add_argument("--engine-option", action="append", default=[])
    parser.add_argument("--at-once", type=int, default=1, help="files, each a process")
    parser.add_argument(
        "files", nargs="*", default=list(FILES), help="tests to run in place of all"
    )
    asked = parser.parse_args()
    chosen = asked.engine_option
    if asked.engine == "sglang":
        # Tests ask for float32, which SGLang's kernels for GPUs do not know.
        own = ["dtype=auto"] if asked.device == "cuda" else []
        chosen = [f"device={asked.device}", *own, *chosen]
    where = gpu.describe(asked.device, "sglang", "nixl-cu13")
    status, tests = run(asked.engine, chosen, asked.files, asked.at_once)
    cells = counted(tests)
    print(f"\nMeasured on {where}; {asked.engine} {' '.join(chosen)}.\n")
    print(gpu.table(["file", *OUTCOMES], cells), end="\n\n")
    held, said = verdict(status, tests, asked.device)
    print(said)
    gpu.report(asked.json, machine=where, files=cells, tests=tests)
    sys.exit(not held)


if __name__ == "__main__":
    main()
