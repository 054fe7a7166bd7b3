"""Every command with `--json`, against a real stack: what programs read, and exit statuses."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tandem import cli
from tandem.cli.options import model_path

STACK = "up --engine=sim --port=0 --run-dir=RUN"
CASES = {
    "init": ("FOLDER/stack.yaml", {"file"}),
    "up": ("--engine=sim --port=0 --run-dir=RUN", {"url", "engine", "components"}),
    "status": ("--run-dir=RUN", {"url", "engine", "components"}),
    "logs": ("router --run-dir=RUN", {"component", "line"}),
    "chat": ("Hello --max-tokens=4 --run-dir=RUN", {"model", "text", "finish_reason", "usage"}),
    "demo": ("--engine=sim --run-dir=FOLDER", {"ok", "problems"}),
    "top": ("--once --interval=0.1 --run-dir=RUN", {"routers", "workers", "traffic"}),
    "why": ("--slowest=1 --run-dir=RUN", {"trace_id", "causes"}),
    "verify": ("--url=URL", {"ok", "held", "problems"}),
    "doctor": ("--run-dir=RUN", {"findings", "versions", "stack"}),
    "monitoring": ("export --to=FOLDER --run-dir=RUN", {"files", "targets"}),
    "bench": ("--url=http://127.0.0.1:1", set[str]()),
    "replay": ("--generate=chat --requests=20 --fleet=FLEET", {"requests", "ttft_seconds"}),
    "measure-times": ("--engine-option=step_ms=20", {"prefill_ms", "step_ms"}),
    "plan-fit": ("MODEL", {"prefill", "decode"}),
    "config": ("check SIM", {"ok", "problems"}),
    "check-hook": ("examples.hooks:PhraseGuard", {"hook", "ok", "checks"}),
    "keys": ("new acme", {"key", "line"}),
    "fetch-model": ("file://MODEL --to=FOLDER/model", {"folder", "fetched", "files"}),
    "certificates": ("--to=FOLDER/certificates", {"changes"}),
    "down": ("--run-dir=RUN", {"stopped", "killed"}),
}
"""Each command that takes --json: its words, and names that its result has. Without names: the
command fails.
"""
NOT_BY_ITSELF = {"doctor", "bench", "check-hook"}
"""Commands whose status tells of this machine: of its speed, and of what is installed."""


def run(*words: str) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = cli.main(words)
    return status, output.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands in the cases for a running stack, a folder, a fleet's file and a model."""
    folder = tmp_path_factory.mktemp("json")
    fleet, run_dir, sim = folder / "fleet.yaml", folder / "run", folder / "sim.yaml"
    sim.write_text("engine: {type: sim}\n")
    times = "times: {prefill_ms: [[0, 1]], step_ms: [[1, 10]]}"
    fleet.write_text(f"{{prefill: {{workers: 1}}, decode: {{workers: 1}}, {times}}}")
    words = CASES["up"][0].replace("RUN", str(run_dir)).split()
    status, output, errors = run("up", *words, "--detach", "--json")
    assert status == 0, errors
    stack = json.loads(output)
    assert {each["state"] for each in stack["components"]} == {"ready"}
    yield {
        "RUN": str(run_dir),
        "URL": stack["url"],
        "FOLDER": str(folder),
        "FLEET": str(fleet),
        "SIM": str(sim),
        "MODEL": str(model_path(None)),
    }
    run("down", f"--run-dir={run_dir}")


def test_every_command_has_a_case_or_no_result_for_a_program() -> None:
    without = set(cli._HELP) - set(CASES)
    assert without == {"completion"}
    for name in without:
        with pytest.raises(SystemExit) as ended, redirect_stderr(io.StringIO()):
            cli.main([name, "bash", "--json"])
        assert ended.value.code == 2


@pytest.mark.promise("S5-791")
@pytest.mark.parametrize("name", CASES)
def test_standard_output_has_the_result_as_lines_of_json_and_nothing_else(
    name: str, names: dict[str, str]
) -> None:
    words, keys = CASES[name]
    for each, value in names.items():
        words = words.replace(each, value)
    status, output, errors = run(name, "--json", *words.split())
    found = [json.loads(line) for line in output.splitlines()]
    assert bool(found) == bool(keys), errors
    for result in found:
        parts = result if isinstance(result, list) else [result]
        assert all(keys <= part.keys() for part in parts)
    if name in NOT_BY_ITSELF:
        assert status in (0, 1, 2)
    else:
        assert status == 0, errors


@pytest.mark.promise("S5-791")
def test_what_does_not_hold_is_status_1_with_a_result_and_what_cannot_start_2_without(
    tmp_path: Path,
) -> None:
    gone = "http://127.0.0.1:1"
    status, output, _ = run("verify", "--json", f"--url={gone}", "--timeout=0.1")
    assert (status, json.loads(output)["ok"]) == (1, False)
    status, output, _ = run("status", "--json", f"--run-dir={tmp_path}")
    assert (status, json.loads(output)["components"]) == (1, [])
    wrong = tmp_path / "stack.yaml"
    wrong.write_text("engine: {type: sim}\nrouter: {config: {max_queues: 1}}\n")
    status, output, errors = run("config", "--json", "check", str(wrong))
    assert status == 2
    assert "max_queue" in errors
    for words in (["chat", "--json"], ["verify", "--json", "--url=ftp://x"]):
        status, output, errors = run(*words)
        assert (status in (1, 2), output) == (True, "")
        assert errors.startswith("tandem: ")
