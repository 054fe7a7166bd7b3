"""`tandem status` and `tandem logs`, of stacks whose processes are a test's own."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem import cli
from tandem.cli import log_files, logs, processes, run_state, status
from tandem.cli.log_files import LogFollower, last_lines
from tandem.cli.processes import Identity
from tandem.cli.run_state import RunState

GONE = Identity(2**22 + 1, 1)
"""No process has that number: Linux gives none above 2**22."""


@contextmanager
def answering(code: int) -> Iterator[str]:
    """Something that answers every GET with that status: "host:port"."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def this_process() -> Identity:
    found = processes.identify(os.getpid())
    assert found is not None
    return found


def started(run_dir: Path, members: dict[str, Identity], metrics: dict[str, str]) -> None:
    run_dir.mkdir(exist_ok=True)
    url = "http://127.0.0.1:8000"
    run_state.write(run_dir, RunState(url, "sim", None, members, metrics))


def shown(run_dir: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main([*words, f"--run-dir={run_dir}"])
    return code, capsys.readouterr().out


@pytest.mark.promise("S5-756")
def test_status_tells_of_each_component_whether_it_is_ready_or_what_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    me = this_process()
    with answering(200) as good, answering(503) as bad:
        members = {"frontend": me, "router": me, "prefill_worker-0": me, "decode_worker-0": GONE}
        metrics = dict(zip(members, (good, bad, "127.0.0.1:1", good), strict=True))
        started(tmp_path, members, metrics)
        code, text = shown(tmp_path, capsys, "status", "--json")
        assert code == 1
        found = json.loads(text)
        states = {each["component"]: each["state"] for each in found["components"]}
        assert states == {
            "frontend": status.READY,
            "router": status.NOT_READY,
            "prefill_worker-0": status.NO_ANSWER,
            "decode_worker-0": status.ENDED,
        }
        seconds = [each["seconds"] for each in found["components"]]
        assert seconds[3] is None
        assert 0 < seconds[0] < 86_400 * 365
        assert found["components"][0]["log"] == str(tmp_path / "frontend.log")
        code, text = shown(tmp_path, capsys, "status")
        assert code == 1
        assert "!!  decode_worker-0: ended; `tandem logs decode_worker-0`" in text
        assert "!!  frontend" not in text
        started(tmp_path, {"frontend": me}, {"frontend": good})
        assert shown(tmp_path, capsys, "status")[0] == 0


def test_status_where_nothing_is_up_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = shown(tmp_path, capsys, "status")
    assert code == 1
    assert str(tmp_path) in text
    code, text = shown(tmp_path, capsys, "status", "--json")
    assert (code, json.loads(text)["components"]) == (1, [])
    started(tmp_path, {}, {})
    assert shown(tmp_path, capsys, "status")[0] == 1


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3_599, "59 min 59 s"),
        (7_260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_time_is_told_in_two_units(seconds: float, told: str) -> None:
    assert status._told(seconds) == told


@pytest.mark.promise("S5-756")
def test_logs_of_components_are_shown_in_the_order_of_their_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "router.log").write_text(
        "2026-11-30T10:00:01.000Z INFO first\n2026-11-30T10:00:03.000Z ERROR third\n  | Traceback\n"
    )
    (tmp_path / "decode_worker-0.log").write_text(
        '{"time": "2026-11-30T10:00:02.000Z", "message": "second"}\r\n'
        "2026-11-30T10:00:04.000Z bar \x1b[2K\r90%\n"
    )
    code, text = shown(tmp_path, capsys, "logs")
    assert code == 0
    said = [line.partition(" | ")[::2] for line in text.splitlines()]
    assert [name.strip() for name, _ in said] == [
        "router",
        "decode_worker-0",
        "router",
        "router",
        "decode_worker-0",
    ]
    assert said[3][1] == "  | Traceback"
    assert said[4][1] == "2026-11-30T10:00:04.000Z bar [2K90%"
    assert "\x1b" not in text
    code, text = shown(tmp_path, capsys, "logs", "decode_worker", "--lines=1")
    assert (code, text) == (0, "2026-11-30T10:00:04.000Z bar [2K90%\n")
    assert shown(tmp_path, capsys, "logs", "-n0") == (0, "")


def test_logs_into_a_pipe_that_nobody_reads_end_without_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "router.log").write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "tandem.cli", "logs", "-n100000", f"--run-dir={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_logs_of_a_component_that_is_not_there_are_refused_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["logs", f"--run-dir={tmp_path}"]) == 2
    assert "holds no logs" in capsys.readouterr().err
    for name in ("router", "frontend"):
        (tmp_path / f"{name}.log").write_text("")
    assert cli.main(["logs", "rooter", f"--run-dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said == "tandem: there is no component rooter; did you mean router?\n"
    assert cli.main(["logs", "xyz", f"--run-dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.endswith("xyz; there are frontend, router\n")


def test_the_last_lines_of_a_log_of_any_size_are_read_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    with log.open("wb") as file:
        file.truncate(8 * log_files.MOST_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast but one\nlast, without an end \xff")
    assert last_lines(log, 2) == ["last but one", "last, without an end \ufffd"]
    assert sum(map(len, last_lines(log, 10**9))) <= log_files.MOST_BYTES
    (tmp_path / "empty.log").write_bytes(b"")
    assert last_lines(tmp_path / "empty.log", 5) == []


@pytest.mark.promise("S5-756")
def test_what_is_written_to_a_log_is_followed_by_whole_lines_and_through_a_new_start(
    tmp_path: Path,
) -> None:
    log = tmp_path / "router.log"
    log.write_text("before\n")
    follower = LogFollower(log)
    assert list(follower.new_lines()) == []
    with log.open("a") as file:
        file.write("one\ntw")
    assert list(follower.new_lines()) == ["one"]
    with log.open("a") as file:
        file.write("o\n\nfour\n")
    assert list(follower.new_lines()) == ["two", "", "four"]
    log.write_text("anew\n")
    assert list(follower.new_lines()) == ["anew"]
    with log.open("ab") as file:
        file.write(b"x" * (3 * log_files.MOST_BYTES))
    pieces = [line for _ in range(4) for line in follower.new_lines()]
    assert sum(map(len, pieces)) > log_files.MOST_BYTES
    assert max(map(len, pieces)) <= 2 * log_files.MOST_BYTES


def test_following_ends_with_the_stack_and_shows_its_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "router.log"
    log.write_text("")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = processes.identify(process.pid)
        assert identity is not None
        started(tmp_path, {"router": identity}, {})

        def pause(seconds: float) -> None:
            """The process ends behind a last line."""
            with log.open("a") as file:
                file.write("its last words\n")
            process.kill()
            process.wait()

        monkeypatch.setattr(logs.time, "sleep", pause)
        assert shown(tmp_path, capsys, "logs", "--follow") == (0, "its last words\n")
