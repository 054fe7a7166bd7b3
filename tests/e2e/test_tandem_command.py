"""The `tandem` command as a user runs it: its own process, a whole stack, the sim engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tandem.cli import processes, run_state
from tandem.cli.client import Client
from tandem.cli.up import SIMULATED

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 90


def tandem(
    *arguments: str, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandem.cli", *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    assert tandem("down", "--run-dir", str(tmp_path / "run")).returncode == 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a user's project: a hook, and modules that are called as Tandem's packages."""
    folder = tmp_path / "a project"
    folder.mkdir()
    for name in ("frontend", "router", "prefill_worker", "decode_worker"):
        (folder / f"{name}.py").write_text("print('USER CODE RAN')\n")
    (folder / "my_hook.py").write_text(
        "from tandem.hooks.contract import emit\n\n"
        "class Upper:\n"
        "    def __call__(self, chunk):\n        return emit(chunk.text_diff.upper())\n"
    )
    (folder / "my_judge.py").write_text(
        "class Judge:\n    name, blocking, timeout_ms = 'judge', False, 10_000\n"
        "    async def score(self, context):\n        return {'safe': True}\n"
    )
    return folder


@pytest.mark.promise("S6-520")
def test_a_detached_stack_answers_until_it_is_taken_down(run_dir: Path, project: Path) -> None:
    where = ("--run-dir", str(run_dir))
    chain = {"workers": 1, "chain": [{"path": "my_hook:Upper", "phases": ["decode"]}]}
    started = tandem(
        *("up", "--engine=sim", "--port=0", "--detach", *where),
        folder=project,
        TANDEM_HOOKS=json.dumps(chain),
        TANDEM_CLASSIFIERS=json.dumps({"entries": ["my_judge:Judge"]}),
        TANDEM_ALLOW_EXTERNAL_SCORES="true",
    )
    assert started.returncode == 0, started.stderr
    assert "answers are random words" in started.stdout
    state = run_state.read(run_dir)
    assert state is not None
    assert f"curl -N {state.url}/v1/chat/completions" in started.stdout
    assert set(state.running()) == {"frontend", "router", "prefill_worker-0", "decode_worker-0"}

    assert f"playground: {state.url}/playground" in started.stdout
    asked = {
        "model": "tandem-tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 2,
        "tandem": {"report": True, "external_scores": True},
    }
    with httpx.Client(base_url=state.url) as client:
        assert "Tandem playground" in client.get("/playground").text
        answer = client.post("/v1/chat/completions", json=asked).json()
    assert answer["choices"][0]["external_scores"] == {"judge": {"safe": True}}
    report = answer["tandem"]
    assert {phase["phase"] for phase in report["phases"]} == {"prefill", "decode"}

    said = tandem("chat", "--max-tokens=8", "--trace", "Hello", *where)
    assert said.returncode == 0, said.stderr
    note, answered, *traced = said.stdout.splitlines()
    assert note == SIMULATED
    assert answered.strip()
    assert answered == answered.upper()
    told = " ".join(" ".join(traced).split())
    assert re.search(r"tokens \d+ in, 8 out", told)
    assert re.search(r"time read .* prefill .* decode .* ms", told)
    assert re.search(r"decode decode_worker-0 \d+ \d+ emit", told)

    found = tandem("status", *where)
    assert (found.returncode, found.stdout.count(" ready ")) == (0, 4), found.stdout
    logged = tandem("logs", "frontend", "router", *where)
    assert logged.returncode == 0
    assert {line.split(" ")[0] for line in logged.stdout.splitlines()} == {"frontend", "router"}
    assert " serving " in logged.stdout
    examined = tandem("doctor", "--json", *where)
    stack = [each for each in json.loads(examined.stdout)["findings"] if each["about"] == "stack"]
    assert [each["level"] for each in stack] == ["ok"]

    again = tandem("up", "--engine=sim", "--port=0", *where)
    assert (again.returncode, "already up" in again.stdout) == (0, True)
    other = tandem("up", "--engine=sim", "--port=0", "--decode=2", *where)
    assert (other.returncode, "with other options (decode)" in other.stderr) == (2, True)
    assert run_state.read(run_dir) == state

    down = tandem("down", *where)
    assert (down.returncode, "stopped" in down.stdout) == (0, True)
    assert "killed" not in down.stdout
    assert state.running() == []
    assert tandem("status", *where).returncode == 1


@pytest.mark.promise("S6-521")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_foreground_stack_stops_in_order_on_a_signal_and_ends_with_its_command(
    run_dir: Path, number: int
) -> None:
    output = run_dir.with_name("up.out")
    with output.open("wb") as stdout:
        up = subprocess.Popen(
            [
                *(sys.executable, "-m", "tandem.cli", "up", "--engine=sim", "--port=0"),
                f"--run-dir={run_dir}",
            ],
            cwd=ROOT,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # A shell's background job ignores SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    until = time.monotonic() + SECONDS
    while "Ctrl-C stops it." not in output.read_text():
        assert up.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.05)
    state = run_state.read(run_dir)
    assert state is not None
    assert Client(state.url).status("/ready") == 200
    members = list(state.processes.values())
    up.send_signal(number)
    if number == signal.SIGKILL:
        assert up.wait(timeout=SECONDS) == -signal.SIGKILL
        assert processes.wait_gone(members, SECONDS)
        return
    assert up.wait(timeout=SECONDS) == 0
    assert "stopped" in output.read_text()
    assert "killed" not in output.read_text()
    assert not any(processes.alive(process) for process in members)
    assert run_state.read(run_dir) is None


def test_the_demo_holds_on_the_sim_engine(tmp_path: Path) -> None:
    shown = tandem("demo", "--engine=sim", "--run-dir", str(tmp_path))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for part in ("trace_id", "TTFT", "ITL", "bytes in", "Hello world!", "phrase_guard"):
        assert part in shown.stdout
    assert "everything shown held" in shown.stdout


@pytest.mark.promise("S0-002")
def test_a_wrong_hook_path_fails_the_start_and_names_the_path(tmp_path: Path) -> None:
    failed = tandem(
        *("up", "--engine=sim", "--port=0", "--hook-decode=no_such_module_here:Hook"),
        *("--run-dir", str(tmp_path)),
    )
    assert failed.returncode == 2
    assert "decode_worker-0 ended with status 2" in failed.stderr
    assert "no_such_module_here" in failed.stderr
    assert run_state.read(tmp_path) is None
