"""Whom `tandem top` asks, what it shows of those that do not answer, and how a terminal is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from local_servers import answering
from terminals import PATIENCE, TerminalCommand, on_terminal
from test_top_figures import router, worker

from tandem import cli
from tandem.cli import run_state
from tandem.cli.client import ApiError
from tandem.cli.run_state import RunState
from tandem.free_ports import FreePorts
from tandem_tools.top import readings
from tandem_tools.top.readings import FleetAddresses

# --- asked --------------------------------------------------------------------------------------


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


FLEET = msgspec.json.encode(router(queue_length=3, open_sequences=2))
WITH_A_WORKER = msgspec.json.encode(
    router(worker("10.0.0.7:7200", name="decode-7"), queue_length=3, open_sequences=2)
)
WORKER = b"""\
tandem_worker_open_legs{phase="decode"} 2
tandem_worker_waiting_legs{phase="decode"} 1
tandem_worker_tokens_total{phase="decode"} 30
tandem_worker_prompt_tokens_total{phase="decode"} 8
tandem_worker_cached_tokens_total{phase="decode"} 4
tandem_worker_kv_used_ratio{phase="decode"} 0.25
"""


FRONTEND = b"""\
tandem_frontend_requests_total{fault="none",outcome="success"} 3
tandem_frontend_slo_seconds{objective="ttft"} 2
"""


@pytest.mark.promise("S5-205")
def test_those_that_do_not_answer_are_named_and_the_others_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readings, "ANSWER_SECONDS", 2.0)
    with (
        answering({"/debug/fleet": FLEET}) as good,
        answering({"/debug/fleet": b'{"queue_length": "many"}'}) as old,
        answering({}) as without,
        answering({"/metrics": WORKER}) as engine,
        answering({"/metrics": b"tandem_router_queue_length 1\n"}) as stranger,
        answering({"/metrics": FRONTEND}) as frontend,
        silent() as mute,
    ):
        routers = ",".join((good, old, without, mute))
        workers = ",".join((engine, stranger, mute))
        flags = [f"--routers={routers}", f"--workers={workers}"]
        flags.append(f"--frontends={frontend},{stranger}")
        status = cli.main(["top", "--once", "--interval=0.05", *flags])
        shown = capsys.readouterr().out
        assert status == 0
        assert cli.main(["top", "--once", "--json", "--interval=0.05", *flags]) == 0
        (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    by_address = {each["address"]: each for each in told["routers"]}
    assert by_address[good]["queue_length"] == 3
    assert "not that of a router of this version" in by_address[old]["problem"]
    assert by_address[without]["problem"].startswith("404")
    assert by_address[mute]["problem"]
    (seen,) = (each for each in told["workers"] if each["address"] == engine)
    assert (seen["legs"], seen["waiting"], seen["hit_rate"]) == (2, 1.0, 0.5)
    assert seen["kv_used_ratio"] == 0.25
    reasons = {each["address"]: each["reason"] for each in told["workers"]}
    assert reasons[stranger] == "metrics: no worker's metrics are at this address"
    assert reasons[mute].startswith("metrics: ")
    assert told["silent_frontends"] == {stranger: "no frontend's metrics are at this address"}
    assert told["traffic"]["slo"] == {"ttft": 2.0}
    for part in (f"{old}: no answer: the answer is not that", f"{mute}: no answer", "3/1024"):
        assert part in shown
    assert "\x1b" not in shown


@pytest.mark.promise("S5-205")
def test_where_no_router_answers_one_frame_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: FreePorts
) -> None:
    nobody = free.address()
    monkeypatch.setattr("tandem_tools.top.ROUTER", nobody)
    assert cli.main(["top", "--once", "--interval=0.05", f"--routers={nobody}"]) == 1
    told = capsys.readouterr()
    assert f"{nobody}: no answer: " in told.out
    assert told.err == "tandem: no router answers\n"


@pytest.mark.promise("S5-205")
def test_one_that_sends_a_little_now_and_then_holds_nobody_up_and_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte is in time, and the answer would end long after its time."""
    monkeypatch.setattr(readings, "ANSWER_SECONDS", 0.4)
    over = threading.Event()

    def drip() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(120):
                if over.wait(0.05):
                    return
                peer.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            told = readings.read(FleetAddresses([address])).routers[address]
            threads = threading.active_count()
            again = readings.read(FleetAddresses([address])).routers[address]
            assert threading.active_count() == threads, "the first reading still runs"
        finally:
            over.set()
            thread.join()
    assert isinstance(told, ApiError)
    assert str(told) == str(again) == "it does not answer in time"


@pytest.mark.parametrize(
    "flags",
    [
        ["--routers=nowhere"],
        ["--workers=:1"],
        ["--frontends=a"],
        ["--interval=0"],
        ["--interval=nan"],
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", "--once", *flags]) == 2
    assert flags[0].partition("=")[0] in capsys.readouterr().err


def test_the_stack_of_this_run_directory_is_asked_where_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        answering({"/debug/fleet": FLEET}) as good,
        answering({"/metrics": WORKER}) as engine,
        answering({"/metrics": FRONTEND}) as frontend,
    ):
        ports = {"router": good, "decode_worker-0": engine, "frontend": frontend}
        run_state.write(tmp_path, RunState("http://127.0.0.1:1", "sim", None, {}, ports))
        status = cli.main(["top", "--once", "--interval=0.05", f"--run-dir={tmp_path}"])
    shown = capsys.readouterr().out
    assert status == 0
    assert "3/1024" in shown
    assert "decode_worker-0" in shown, "by its name, not by its metrics port"
    assert "SLO 2 s" in shown


# --- live ---------------------------------------------------------------------------------------


@contextmanager
def watched(**more: Any) -> Iterator[TerminalCommand]:
    """`tandem top` on a terminal, of a router and a worker that answer."""
    with (
        answering({"/debug/fleet": WITH_A_WORKER}) as router,
        on_terminal("top", f"--routers={router}", "--interval=0.2", **more) as terminal,
    ):
        yield terminal


@pytest.mark.promise("S5-751")
@pytest.mark.parametrize("way", ["q", "\x03", "\x04", signal.SIGINT, signal.SIGTERM], ids=repr)
def test_however_it_ends_the_terminal_is_as_it_was(way: str | signal.Signals) -> None:
    with watched() as terminal:
        terminal.until("3/1024")
        assert termios.tcgetattr(terminal.worker) != terminal.before
        if isinstance(way, str):
            terminal.press(way)
        else:
            terminal.process.send_signal(way)
        assert terminal.end() == 0
        assert terminal.is_as_before()
        assert "Traceback" not in terminal.text


BROKEN = """
from tandem_tools.top import frame, readings

def broken(*_):
    raise RuntimeError("this part is broken")

PART = broken
from tandem import cli
import sys
sys.exit(cli.main())
"""


@pytest.mark.promise("S5-751")
@pytest.mark.parametrize("part", ["frame.screen", "readings.read"])
def test_an_error_ends_it_and_leaves_the_terminal_as_it_was(part: str) -> None:
    """Also one of the thread that reads."""
    program = "-c", BROKEN.replace("PART", part)
    with (
        answering({"/debug/fleet": FLEET}) as router,
        on_terminal("top", f"--routers={router}", program=program) as terminal,
    ):
        assert terminal.end() == 1
        assert terminal.is_as_before()
        assert "RuntimeError: this part is broken" in terminal.text


@pytest.mark.promise("S5-751")
def test_a_terminal_that_goes_away_ends_it() -> None:
    with watched() as terminal:
        terminal.until("3/1024")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 0


def test_it_is_suspended_and_comes_back() -> None:
    with watched() as terminal:
        terminal.until("3/1024")
        terminal.press("\x1a")
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.read(time.monotonic() + 0.1)
        assert terminal.is_as_before()
        terminal.process.send_signal(signal.SIGCONT)
        terminal.press("p")
        terminal.until("PAUSED")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.is_as_before()


def test_a_new_size_is_drawn_at_once() -> None:
    """Long before the next reading, also where a shell exports the size that it began with."""
    with (
        answering({"/debug/fleet": WITH_A_WORKER}) as router,
        on_terminal(
            *("top", f"--routers={router}", "--interval=3600"), COLUMNS="80", LINES="24"
        ) as terminal,
    ):
        assert "retries" in terminal.until("3/1024", "decode-7")
        terminal.size(44, 10)
        terminal.until("decode-7", "1/8")
        deadline = time.monotonic() + PATIENCE
        while "retries" in (screen := terminal.until("decode-7")):
            assert time.monotonic() < deadline
            terminal.read(time.monotonic() + 0.1)
        assert max(map(len, screen.splitlines())) <= 44


@pytest.mark.promise("S5-751")
def test_a_router_that_goes_away_is_said_in_time_and_keys_are_answered_meanwhile() -> None:
    with answering({"/debug/fleet": FLEET}) as router:
        terminal = TerminalCommand("top", f"--routers={router}", "--interval=0.2")
        terminal.until("3/1024")
    try:
        terminal.until(f"{router}: no answer", "no router answers")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
    with silent() as mute, on_terminal("top", f"--routers={mute}", "--interval=0.2") as terminal:
        terminal.until("no router answers")
        pressed = time.monotonic()
        terminal.press("p")
        terminal.until("PAUSED")
        terminal.press("q")
        assert terminal.end() == 0
        assert time.monotonic() - pressed < PATIENCE


def test_no_color_is_honoured_and_a_dumb_terminal_gets_plain_frames() -> None:
    with watched(NO_COLOR="1") as terminal:
        terminal.until("3/1024", "decode-7")
        colours = re.findall(r"\x1b\[[0-9;]*m", terminal.text)
        assert not [each for each in colours if re.search(r"[34]\d", each)], "bold and dim are none"
    with watched(NO_COLOR="") as terminal:
        terminal.until("3/1024", "decode-7")
        assert re.search(r"\x1b\[[0-9;]*3\d", terminal.text)
    with watched(TERM="dumb") as terminal:
        terminal.until("3/1024", "decode-7")
        assert "\x1b" not in terminal.text
