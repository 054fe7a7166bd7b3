"""What `tandem top` shows of routers and workers, and of those that do not answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem import cli
from tandem.cli import run_state
from tandem.cli.client import ApiError
from tandem.cli.console import Console
from tandem.cli.run_state import RunState
from tandem.free_ports import FreePorts
from tandem_tools import fleet_frame, fleet_readings
from tandem_tools.fleet_readings import EngineReading, Readings, RouterReading, WorkerSeen


def worker(address: str, **fields: Any) -> WorkerSeen:
    given = {
        "address": address,
        "name": f"name of {address}",
        "phase": "decode",
        "connected": True,
        "refused": "",
        "silent_seconds": 0.0,
        "faults": 0,
        "open_legs": 1,
        "other_legs": 0,
        "slots": 8,
        "overdue_legs": 0,
        "standing": "whole",
        "failed_legs": 0,
        "ended_legs": 0,
    }
    return WorkerSeen(**(given | fields))


def router(*workers: WorkerSeen, **fields: Any) -> RouterReading:
    given = {
        "queue_length": 0,
        "queue_limit": 1024,
        "open_sequences": 0,
        "frontends": 1,
        "ready_pairs": 1,
        "draining": False,
        "requests": {},
        "retries": 0,
        "workers": list(workers),
    }
    return RouterReading(**(given | fields))


def frame(
    routers: dict[str, Any] | None = None,
    engines: dict[str, Any] | None = None,
    *,
    before: Readings | None = None,
    most: int = 100,
) -> list[list[str]]:
    now = Readings(10.0, routers or {}, engines or {})
    lines = fleet_frame.lines(before or now, now, most_workers=most)
    return [line.split() for line in lines]


def test_a_router_has_its_queue_and_what_ended_since_the_last_frame() -> None:
    then = router(requests={"finished": 10, "queue_full": 1, "cancelled": 4})
    now = router(
        queue_length=7,
        open_sequences=3,
        ready_pairs=4,
        retries=2,
        draining=True,
        requests={"finished": 14, "queue_full": 3, "cancelled": 8},
    )
    rows = frame({"r:1": now}, before=Readings(8.0, {"r:1": then}, {}))
    assert rows[2] == ["r:1", "(draining)", "7/1024", "3", "4", "1", "5.0", "1.0", "2"]


def test_workers_in_trouble_come_first_and_say_what_it_is() -> None:
    one = router(
        worker("a:1"),
        worker("b:1", silent_seconds=7.5),
        worker("c:1", connected=False, refused="it sent nothing for 10 seconds", slots=0),
        worker("d:1", refused="it is draining", overdue_legs=2, faults=1),
        worker("e:1", standing="probation", failed_legs=3, ended_legs=4),
    )
    other = router(worker("a:1", open_legs=2, other_legs=1), worker("d:1", overdue_legs=1))
    lines = fleet_frame.lines(
        Readings(0.0, {}, {}), Readings(1.0, {"r:1": one, "r:2": other}, {}), most_workers=4
    )
    place = lines.index("workers")
    rows = [line.split(maxsplit=7) for line in lines[place + 2 : place + 6]]
    assert [row[0] for row in rows] == ["b:1", "c:1", "d:1", "e:1"]
    assert [row[-1] for row in rows] == [
        "silent for 7.5 s",
        "not connected: it sent nothing for 10 seconds",
        "it is draining; 3 legs overdue; 1 faults",
        "on probation: 3 of the last 4 legs failed",
    ]
    assert lines[place + 6] == "  and 1 more"
    whole = frame({"r:1": one, "r:2": other})
    assert ["a:1", "name", "of", "a:1", "decode", "3", "8"] in whole


def test_what_a_worker_says_is_no_command_to_a_terminal() -> None:
    seen = worker("a:1", name="\x1b[2Jx\n", connected=False, refused="\x1b]0;title\x07" + "y" * 900)
    text = "\n".join(
        fleet_frame.lines(
            Readings(0.0, {}, {}), Readings(1.0, {"r:1": router(seen)}, {}), most_workers=9
        )
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert max(map(len, text.splitlines())) < 200


def engines(*tokens: float, seconds: float = 2.0, **fields: Any) -> list[list[str]]:
    def reading(count: float, **more: Any) -> EngineReading:
        return EngineReading(phase="decode", open_legs=2, tokens=count, **more)

    names = [f"e{index}:1" for index in range(len(tokens))]
    before = Readings(10.0 - seconds, {}, {each: reading(0.0) for each in names})
    now = {name: reading(count, **fields) for name, count in zip(names, tokens, strict=True)}
    rows = frame({}, now, before=before)
    return rows[rows.index(["engines"]) + 2 :]


def test_a_worker_whose_sequences_get_half_of_what_is_usual_is_slow() -> None:
    rows = engines(400, 400, 400, 150)
    assert [row[4] for row in rows] == ["200", "200", "200", "75"]
    assert [row[-1] == "slow" for row in rows] == [False, False, False, True]
    assert engines(150)[0][-1] != "slow", "nothing is usual of one alone"
    assert all(row[-1] != "slow" for row in engines(0, 0))


def test_the_hit_rate_is_that_since_the_last_frame_or_since_the_start() -> None:
    (row,) = engines(1, prompt_tokens=200, cached_tokens=50, kv_used_ratio=0.5)
    assert row[5:7] == ["25%", "50%"]
    (row,) = engines(1)
    assert row[5] == "-"
    then = Readings(0.0, {}, {"e:1": EngineReading(phase="prefill", prompt_tokens=100.0)})
    now = {"e:1": EngineReading(phase="prefill", prompt_tokens=150.0, cached_tokens=50.0)}
    rows = frame({}, now, before=then)
    assert rows[-1][5] == "100%"


# --- asked --------------------------------------------------------------------------------------


@contextmanager
def answering(answers: dict[str, str]) -> Iterator[str]:
    """The address of a server that has these answers, and 404 for the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write((body or "not found").encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


FLEET = {
    "queue_length": 3,
    "queue_limit": 1024,
    "open_sequences": 2,
    "frontends": 1,
    "ready_pairs": 1,
    "draining": False,
    "requests": {},
    "retries": 0,
    "requeued": 0,
    "workers": [],
}
METRICS = """\
tandem_worker_open_legs{phase="decode"} 2
tandem_worker_waiting_legs{phase="decode"} 1
tandem_worker_tokens_total{phase="decode"} 30
tandem_worker_prompt_tokens_total{phase="decode"} 8
tandem_worker_cached_tokens_total{phase="decode"} 4
tandem_worker_kv_used_ratio{phase="decode"} 0.25
"""


@pytest.mark.promise("S5-205")
def test_those_that_do_not_answer_are_named_and_the_others_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet_readings, "ANSWER_SECONDS", 0.5)
    older = json.dumps({"queue_length": "many"})
    with (
        answering({"/debug/fleet": json.dumps(FLEET)}) as good,
        answering({"/debug/fleet": older}) as old,
        answering({}) as without,
        answering({"/metrics": METRICS}) as engine,
        answering({"/metrics": "tandem_router_queue_length 1\n"}) as no_worker,
        silent() as mute,
    ):
        routers = ",".join((good, old, without, mute))
        workers = ",".join((engine, no_worker, mute))
        status = cli.main(
            ["top", "--once", "--interval=0.05", f"--routers={routers}", f"--workers={workers}"]
        )
        shown = capsys.readouterr().out
        by_name = {line.split()[0]: line for line in shown.splitlines() if line.startswith("  ")}
        assert status == 0
        assert "3/1024" in by_name[good]
        assert "no answer: the answer is not that of a router of this version" in by_name[old]
        assert "no answer: 404" in by_name[without]
        assert by_name[engine].split()[1:] == ["decode", "2", "1", "0", "50%", "25%"]
        assert "no answer: no worker's metrics are at this address" in by_name[no_worker]
        assert "no answer" in by_name[mute]


@pytest.mark.promise("S5-205")
def test_where_no_router_answers_one_frame_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: FreePorts
) -> None:
    nobody = free.address()
    monkeypatch.setattr("tandem_tools.top.ROUTER", nobody)
    assert cli.main(["top", "--once", "--interval=0.05", f"--routers={nobody}"]) == 1
    told = capsys.readouterr()
    assert f"  {nobody}" in told.out
    assert told.err == "tandem: no router answers\n"


@pytest.mark.promise("S5-205")
def test_one_that_sends_a_little_now_and_then_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte is in time, and the answer would end long after its time."""
    monkeypatch.setattr(fleet_readings, "ANSWER_SECONDS", 0.4)
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
            told = fleet_readings.read([address], []).routers[address]
        finally:
            over.set()
            thread.join()
    assert isinstance(told, ApiError)
    assert str(told) == "it does not answer in time"


@pytest.mark.parametrize(
    "flags",
    [["--routers=nowhere"], ["--workers=:1"], ["--interval=0"], ["--interval=nan"]],
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
        answering({"/debug/fleet": json.dumps(FLEET)}) as good,
        answering({"/metrics": METRICS}) as engine,
    ):
        ports = {"router": good, "decode_worker-0": engine, "frontend": "nobody:1"}
        run_state.write(tmp_path, RunState("http://127.0.0.1:1", "sim", None, {}, ports))
        status = cli.main(["top", "--once", "--interval=0.05", f"--run-dir={tmp_path}"])
    shown = capsys.readouterr().out
    assert status == 0
    assert f"  {good}  3/1024" in shown
    assert f"  {engine}  decode" in shown
    assert "nobody" not in shown


def test_a_live_frame_takes_the_place_of_the_one_before_and_ends_with_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = iter([None, None])

    def sleep(_: float) -> None:
        try:
            next(pauses)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("tandem_tools.top.time.sleep", sleep)
    made: list[Console] = []

    def console() -> Console:
        made.append(Console(terminal=True))
        return made[-1]

    monkeypatch.setattr("tandem.cli.Console", console)
    with answering({"/debug/fleet": json.dumps(FLEET)}) as good:
        assert cli.main(["top", f"--routers={good}"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\x1b[H") == 2
    assert shown.count("\x1b[J") == 2
    assert "\x1b[2J" not in shown, "a screen that is cleared each time flickers"
