"""What `tandem up` leaves behind for `tandem down`, and what a start that fails says."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
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
from tandem.cli.up import offers, show_endpoint, stopping_on_signals
from tandem.errors import ConfigError, StartError

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


@pytest.mark.promise("S6-521")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_foreground_command_once(number: signal.Signals) -> None:
    """The kernel and the shell both send SIGHUP: the second must not cut the drain short."""
    before = signal.getsignal(number)
    interrupted = 0
    with stopping_on_signals():
        for _ in range(2 if number == signal.SIGHUP else 1):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                interrupted += 1
    assert interrupted == 1
    assert signal.getsignal(number) is before


def test_a_command_under_nohup_does_not_end_with_the_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("port", ["-1", "65536", "99999", "http"])
def test_a_port_that_is_none_is_refused_by_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--engine=sim", f"--port={port}", f"--run-dir={tmp_path}"])
    assert ended.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_port_that_is_taken_is_noticed_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--engine=sim", f"--port={port}", f"--run-dir={tmp_path}"]) == 2
    said = capsys.readouterr()
    assert f"--port {port} cannot be had (Address already in use)" in said.err
    assert "--port 0" in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["up", "--engine=sim", "--port=0"], ["down"]])
@pytest.mark.parametrize("kind", ["a file", "a folder in the way"])
def test_a_run_folder_that_cannot_be_used_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], kind: str
) -> None:
    run_dir = tmp_path / "run"
    if kind == "a file":
        run_dir.write_text("")
    else:
        (run_dir / run_state.FILE).mkdir(parents=True)
    assert main([*command, f"--run-dir={run_dir}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tandem: cannot ")
    assert said.count("\n") == 1


def test_a_full_disk_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StartError, match=r"cannot write .*No space left on device"):
        run_state.write(tmp_path, RunState("http://127.0.0.1:1", "sim", None, {}))


def test_sglang_that_is_not_installed_is_said_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.cli.up.find_spec", lambda name: None)
    assert main(["up", "--engine=sglang", "--port=0", f"--run-dir={tmp_path}"]) == 2
    said = capsys.readouterr()
    assert "pip install 'tandem-serving[sglang]'" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["keys", "new", "a b c"], "name: letters, digits"),
        (["keys", "new", "a", "--max-n=0"], "max_n: Expected"),
        (["plan-fit", "MODEL", "--context=9000"], "fewer than --context 9000"),
        (["plan-fit", "/no/such"], "/no/such"),
        (["config", "check"], "needs the file of a stack, or a component"),
        (["chat", "--url=ftp://x", "hi"], "is no address"),
        (["top", "--once", "--routers=nonsense"], ""),
        (["fetch-model", "ftp://x", "--to=/no/such"], ""),
        (["check-hook", "no_such:Hook"], "no_such"),
        (["check-hook", "json:dumps", "--config=["], "--config cannot be read"),
        (["certificates", "--to=/proc/no"], ""),
        (["demo", "--engine=sim", "--run-dir=/proc/no"], "cannot make the folder"),
        (["verify", "--url=http://127.0.0.1:1", "--timeout=0.1"], ""),
        (["bench", "--trace=/no/such"], ""),
    ],
)
def test_a_plausible_mistake_is_answered_with_a_sentence(
    capfd: pytest.CaptureFixture[str], command: list[str], says: str, model_path: Path
) -> None:
    arguments = [str(model_path) if each == "MODEL" else each for each in command]
    try:
        status = main(arguments)
    except SystemExit as ended:  # argparse's
        status = ended.code
    said = capfd.readouterr()
    assert status in (1, 2)
    assert says in said.out + said.err
    assert "Traceback" not in said.out + said.err


def test_plan_fit_takes_a_models_own_context_where_that_is_shorter(
    capsys: pytest.CaptureFixture[str], model_path: Path
) -> None:
    assert main(["plan-fit", str(model_path)]) == 0
    assert "sequences of 4,096 tokens" in capsys.readouterr().out


@pytest.mark.promise("S5-790")
def test_a_prometheus_that_is_not_installed_is_said_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run_dir = tmp_path / "run"
    assert main(["up", "--engine=sim", "--port=0", "--monitoring", f"--run-dir={run_dir}"]) == 2
    said = capsys.readouterr()
    assert "--monitoring starts the program `prometheus`, and PATH has none" in said.err
    assert said.out == ""
    assert list(run_dir.iterdir()) == []
