"""`tandem bench` with AIPerf itself, against a real stack."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem.testing.sim_stack import SimStack, sim_stack
from tandem_tools.bench import aiperf
from tandem_tools.bench.aiperf import BenchRun, BenchTarget
from tandem_tools.bench.figures import BenchSlo, Figures, percentiles
from tandem_tools.bench.load import BenchLoad
from tandem_tools.trace import TracedRequest

VERSION = "0.13.0"
HOME = Path(__file__).parents[2] / "build" / "aiperf"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def command() -> Iterator[None]:
    """AIPerf is on the PATH: in an environment of its own, made where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{HOME / 'bin'}{os.pathsep}{os.environ['PATH']}")
        try:
            aiperf.program()
        except ConfigError:
            _install()
        yield


def _install() -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(HOME / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, HOME], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, f"aiperf=={VERSION}"], check=True
    )


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    with sim_stack() as running:
        yield running


def run(stack: SimStack, load: BenchLoad, folder: Path) -> tuple[BenchRun, dict[str, Any]]:
    """What came of it, and what AIPerf itself says in its summary."""
    model_path = stack.stack.options.model_path
    target = BenchTarget(stack.url, stack.model, model_path, api_key="", timeout_seconds=60.0)
    outcome = aiperf.run(aiperf.program(), target, load, folder, Console(io.StringIO()))
    summary = folder / "profile_export_aiperf.json"
    return outcome, json.loads(summary.read_bytes())


@pytest.mark.promise("S6-360")
def test_a_closed_loop_is_measured(
    stack: SimStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    load = ["--concurrency", "3", "--requests", "12", "--prompt-tokens", "40"]
    load += ["--output-tokens", "16"]
    assert main(["bench", "--url", stack.url, *load, "--json", "--plot", str(plot)]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["requests"], told["failed"], told["output_tokens"]) == (12, {}, 12 * 16)
    assert told["within_both"] == 12
    assert "<polyline" in plot.read_text(encoding="utf-8")
    assert "12 of 12 (100.0%)" in said.err


@pytest.mark.promise("S6-360")
def test_the_figures_are_those_of_aiperfs_own_summary(stack: SimStack, tmp_path: Path) -> None:
    load = BenchLoad(rate=20.0, requests=30, prompt_tokens=40, output_tokens=16)
    outcome, summary = run(stack, load, tmp_path)
    figures = Figures.of(outcome.answers, BenchSlo(ttft_seconds=2.0, itl_seconds=0.1))
    assert (outcome.problem, figures.succeeded) == ("", 30)
    for name, values in (
        ("time_to_first_token", figures.ttft),
        ("inter_token_latency", figures.itl),
    ):
        ours = {key: seconds * 1000 for key, seconds in percentiles(values).items()}
        assert ours == pytest.approx({key: summary[name][key] for key in ours})
    assert figures.seconds == pytest.approx(summary["benchmark_duration"]["avg"], abs=1e-3)
    assert figures.output_tokens == summary["total_output_tokens"]["avg"]


def test_what_is_open_when_the_time_is_over_is_awaited(stack: SimStack, tmp_path: Path) -> None:
    load = BenchLoad(concurrency=1, seconds=0.01, prompt_tokens=10, output_tokens=1000)
    outcome, _ = run(stack, load, tmp_path)
    assert [answer.output_tokens for answer in outcome.answers] == [1000]


@pytest.mark.promise("S6-362")
def test_a_trace_is_replayed_and_what_the_frontend_refuses_is_counted(
    stack: SimStack, tmp_path: Path
) -> None:
    lengths = [20 + 8 * number for number in range(39)] + [100_000]
    trace = tuple(TracedRequest(20.0 * at, length, 4) for at, length in enumerate(lengths))
    outcome, _ = run(stack, BenchLoad(trace=trace), tmp_path)
    figures = Figures.of(outcome.answers, BenchSlo(ttft_seconds=2.0, itl_seconds=0.1))
    assert (figures.succeeded, figures.output_tokens) == (39, 39 * 4)
    assert figures.failed == {"400 context_length_exceeded": 1}
    began = sorted(answer.began for answer in outcome.answers)
    assert began[-1] - began[0] >= 0.020 * 38
