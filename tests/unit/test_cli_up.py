"""What `tandem up` leaves behind for `tandem down`, and what a start that fails says."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tandem.cli import main, processes, run_state
from tandem.cli.console import Console
from tandem.cli.plan import StackOptions, plan
from tandem.cli.run_state import RunState
from tandem.cli.stack import Component, Stack, StackError
from tandem.cli.up import offers, show_endpoint
from tandem.errors import ConfigError

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_down_with_nothing_up_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--run-dir", str(tmp_path)]) == 0
    assert "nothing is up" in capsys.readouterr().out


def test_down_ends_exactly_what_was_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, other = (subprocess.Popen(SLEEP, start_new_session=True) for _ in range(2))
    try:
        mine, theirs = processes.identify(ours.pid), processes.identify(other.pid)
        assert mine is not None
        assert theirs is not None
        recycled = processes.Identity(theirs.pid, theirs.started - 1)
        state = RunState("http://127.0.0.1:1", "sim", None, {"frontend": mine, "router": recycled})
        run_state.write(tmp_path, state)
        assert run_state.read(tmp_path) == state
        assert state.running() == ["frontend"]
        assert main(["down", "--run-dir", str(tmp_path)]) == 0
        assert ours.wait(timeout=10) != 0
        assert other.poll() is None
        assert "stopped" in capsys.readouterr().out
        assert run_state.read(tmp_path) is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait(timeout=10)


def test_up_while_up_says_so_and_starts_nothing(
    tmp_path: Path, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        identity = processes.identify(running.pid)
        assert identity is not None
        state = RunState("http://127.0.0.1:1", "sim", None, {"frontend": identity})
        run_state.write(tmp_path, state)
        assert main(["up", "--engine", "sim", "--run-dir", str(tmp_path)]) == 0
        assert "already up: sim at http://127.0.0.1:1" in capsys.readouterr().out
        options = StackOptions(model_path=model_path, engine="sim", port=8000, flags=offers())
        asked = run_state.asked_for(options)
        for prefill, expected in ((1, 0), (2, 2)):
            state = replace(state, asked=asked | {"prefill": prefill})
            run_state.write(tmp_path, state)
            assert main(["up", "--engine", "sim", "--run-dir", str(tmp_path)]) == expected
        assert "with other options (prefill): `tandem down` first" in capsys.readouterr().err
        gone = processes.Identity(identity.pid, identity.started - 1)
        state = replace(state, processes={"frontend": identity, "router": gone})
        run_state.write(tmp_path, state)
        assert main(["up", "--engine", "sim", "--run-dir", str(tmp_path)]) == 2
        assert "but router ended: `tandem down` first" in capsys.readouterr().err
        assert run_state.read(tmp_path) == state
    finally:
        running.kill()
        running.wait(timeout=10)


def test_a_run_folder_that_cannot_be_made_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["up", "--engine", "sim", "--run-dir", "/proc/no"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_damaged_list_of_processes_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / run_state.FILE).write_text("{}", encoding="utf-8")
    assert main(["down", "--run-dir", str(tmp_path)]) == 2
    assert "stack.json is damaged" in capsys.readouterr().err


def test_a_component_that_ends_fails_the_start_with_the_end_of_its_log(
    tmp_path: Path, model_path: Path
) -> None:
    options = StackOptions(
        engine="sim", model_path=model_path, flags={"router": ("--no-such-flag=1",)}
    )
    with Stack(options, run_dir=tmp_path) as stack:
        members = [each.identity for each in stack.components.values()]
        with pytest.raises(StackError) as failure:
            stack.wait_ready(timeout_seconds=60)
        assert "ended with status 2" in str(failure.value)
        assert "--no-such-flag" in str(failure.value)
    assert not any(processes.alive(member) for member in members)


@pytest.mark.parametrize(("https", "scheme"), [("", "http"), ("public.pem", "https")])
def test_the_endpoint_is_told_as_the_environment_has_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, https: str, scheme: str
) -> None:
    monkeypatch.setenv("TANDEM_HTTPS_CERT", https)
    monkeypatch.setenv("TANDEM_API_KEYS", "a-key")
    monkeypatch.setenv("TANDEM_SERVED_MODEL_NAME", "served")
    stack = Stack(StackOptions(engine="sim", model_path=tmp_path, port=8000), run_dir=tmp_path)
    with ExitStack() as held:
        frontend = plan(stack.options, held=held)[-1]
    here = processes.identify(os.getpid())
    assert here is not None
    component = Component(frontend, cast("Any", None), here, tmp_path / "frontend.log")
    stack.components[frontend.name] = component
    shown = io.StringIO()
    show_endpoint(stack, Console(shown))
    assert f"endpoint: {scheme}://127.0.0.1:8000/v1   model: served" in shown.getvalue()
    assert "authorization: Bearer KEY" in shown.getvalue()
    assert "a-key" not in shown.getvalue()
    assert run_state.of(stack, owner=None).url == f"{scheme}://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("playground", "reports", "flags"),
    [
        ("", "", ("--playground", "--allow-reports")),
        ("true", "no", ("--playground",)),
        ("false", "1", ("--allow-reports",)),
    ],
)
def test_the_page_and_the_traces_are_there_unless_the_environment_turns_them_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    playground: str,
    reports: str,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.setenv("TANDEM_PLAYGROUND", playground)
    monkeypatch.setenv("TANDEM_ALLOW_REPORTS", reports)
    assert offers() == {"frontend": flags}
    options = StackOptions(engine="sim", model_path=tmp_path, port=8000, flags=offers())
    with ExitStack() as held:
        *_, router, frontend = plan(options, held=held)
    assert ("--allow-reports" in router.flags) == ("--allow-reports" in flags)
    stack = Stack(options, run_dir=tmp_path)
    here = processes.identify(os.getpid())
    assert here is not None
    stack.components["frontend"] = Component(frontend, cast("Any", None), here, tmp_path)
    shown = io.StringIO()
    show_endpoint(stack, Console(shown))
    told = "playground: http://127.0.0.1:8000/playground" in shown.getvalue()
    assert told == ("--playground" in flags)


def test_a_switch_of_the_environment_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM_PLAYGROUND", "perhaps")
    with pytest.raises(ConfigError, match="playground must be true or false, not 'perhaps'"):
        offers()
