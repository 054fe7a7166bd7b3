"""`tandem up --monitoring`: a real Prometheus as one more process of a stack on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from watching import PATIENCE, POLL_SECONDS, Prometheus, Tools

from tandem.cli import main, processes, run_state
from tandem.cli.prometheus import RETENTION_SIZE, RETENTION_TIME
from tandem.cli.run_state import RunState

COMPONENTS = {"frontend", "router", "prefill_worker-0", "decode_worker-0"}
UP = ["up", "--engine=sim", "--port=0", "--monitoring"]


@pytest.fixture
def run_dir(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing that was started there is left running."""
    monkeypatch.setenv("PATH", str(tools.prometheus.parent), prepend=":")
    yield tmp_path
    main(["down", f"--run-dir={tmp_path}"])


def state_of(run_dir: Path) -> RunState:
    found = run_state.read(run_dir)
    assert found is not None
    return found


@pytest.mark.promise("S5-790")
def test_prometheus_watches_the_stack_by_tandems_rules_from_up_to_down(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*UP, "--detach", f"--run-dir={run_dir}"]) == 0
    state = state_of(run_dir)
    url = f"http://{state.metrics['prometheus']}"
    assert f"prometheus: {url}\n" in capsys.readouterr().out
    assert main(["status", "--json", f"--run-dir={run_dir}"]) == 0, "all are ready"
    told = json.loads(capsys.readouterr().out)["components"]
    assert {each["component"] for each in told} == COMPONENTS | {"prometheus"}

    watching = Prometheus(url)
    up = dict.fromkeys(COMPONENTS, "up")
    watching.until(lambda: watching.targets() == up, "all components are scraped, and they alone")
    rules = watching.rules()
    assert {"TandemTargetDown", "TandemNoReadyPair"} <= {each["name"] for each in rules}
    watching.until(
        lambda: {each["health"] for each in watching.rules()} == {"ok"}, "all rules are evaluated"
    )

    process = state.processes["prometheus"]
    flags = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    assert f"--storage.tsdb.retention.time={RETENTION_TIME}" in flags
    assert f"--storage.tsdb.retention.size={RETENTION_SIZE}" in flags
    assert (run_dir / "prometheus" / "data" / "wal").is_dir()

    to = run_dir / "exported"
    assert main(["monitoring", "export", f"--to={to}", f"--run-dir={run_dir}"]) == 0
    assert {each["labels"]["pod"] for each in json.loads((to / "targets.json").read_text())} == (
        COMPONENTS
    ), "Prometheus is no component of a release"
    assert main(["up", "--engine=sim", "--port=0", f"--run-dir={run_dir}"]) == 2
    assert "other options (monitoring)" in capsys.readouterr().err

    assert main(["down", f"--run-dir={run_dir}"]) == 0
    assert not processes.alive(process)


@pytest.mark.promise("S5-790")
def test_prometheus_does_not_outlive_a_stack_whose_command_is_killed(run_dir: Path) -> None:
    command = [sys.executable, "-m", "tandem.cli", *UP, f"--run-dir={run_dir}"]
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not (run_dir / run_state.FILE).exists():
            assert up.poll() is None
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        process = state_of(run_dir).processes["prometheus"]
        assert processes.alive(process)
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait(timeout=10)
    assert processes.wait_gone([process], 10)
