"""What is told of SGLang's processes that fail, by what they printed. Over processes of our own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import StartError
from tandem_sglang.last_words import UNKNOWN, LastWords
from tandem_sglang.launch import SglangThread

pytestmark = [pytest.mark.promise("S5-471"), pytest.mark.timeout(60)]
ROOT = Path(__file__).resolve().parents[3]
CHILD = """
import os, signal, socket, sys
from tandem_sglang import last_words
last_words.join(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
exec(sys.argv[3])
"""
KILLED = "os.write(2, b'out of memory\\n'); os.kill(os.getpid(), signal.SIGKILL)"


class Child:
    """A process of SGLang's, as multiprocessing shows it."""

    def __init__(self, words: LastWords, name: str, act: str) -> None:
        outbox = words.outbox.fileno()
        command = [sys.executable, "-c", CHILD, str(outbox), name, act]
        self._process = subprocess.Popen(command, pass_fds=[outbox], cwd=ROOT)
        self._process.wait(30)
        self.pid = self._process.pid
        self.exitcode = self._process.returncode


@pytest.fixture
def words() -> Iterator[LastWords]:
    made = LastWords()
    yield made
    made.close()


def test_a_process_that_is_killed_is_named_and_what_it_printed_is_told(
    words: LastWords, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a library, too, in its last moment."""
    well = Child(words, "scheduler TP0", "print('warning', file=sys.stderr)")
    killed = Child(words, "scheduler TP1", KILLED)
    told = words.of_failure({each.pid: each.exitcode for each in (well, killed)})
    assert told.who == f"scheduler TP1 (process {killed.pid}) was killed by SIGKILL"
    assert told.printed == "out of memory"
    assert set(capfd.readouterr().err.splitlines()) == {"warning", "out of memory"}


class Unread(LastWords):
    """What is printed lies there until somebody asks."""

    def _run(self) -> None:
        if self._closed:
            super()._run()


def test_what_is_printed_just_before_the_end_is_told_too() -> None:
    words = Unread()
    killed = Child(words, "scheduler TP0", KILLED)
    assert words.of_failure({killed.pid: killed.exitcode}).printed == "out of memory"
    words.close()
    words._run()


def test_what_a_process_said_is_still_known_when_another_reports_after_the_close() -> None:
    words = LastWords()
    killed = Child(words, "scheduler TP0", KILLED)
    exits = {killed.pid: killed.exitcode}
    before = words.of_failure(exits)
    words.close()
    assert words.of_failure(exits) == before
    assert words.of_hang() == "scheduler TP0: out of memory"


def test_of_processes_that_fail_one_after_the_other_the_first_is_to_blame(words: LastWords) -> None:
    """They report before they end, if they end at all."""
    says = "print('Scheduler hit an exception: no', {!r}, file=sys.stderr)".format
    assert words.of_failure({}) == UNKNOWN
    first = Child(words, "scheduler TP1", says("memory" + " at all" * 1000))
    words.of_failure({})
    second = Child(words, "scheduler TP0", says("peer"))
    told = words.of_failure({second.pid: 0, first.pid: 0})
    assert told.who == f"scheduler TP1 (process {first.pid}) failed"
    assert told.printed.endswith("at all"), "however much of it is kept"


def test_data_parallel_ranks_are_to_blame_and_not_their_controller(words: LastWords) -> None:
    """Its children are not the worker's, and it ends by their report."""
    reported = "os.kill(os.getpid(), signal.SIGQUIT)"
    killed = Child(words, "scheduler TP1 PP0 DP1", KILLED)
    words.of_failure({})
    says = "print('Scheduler hit an exception: connection closed', file=sys.stderr)"
    Child(words, "scheduler TP0 PP0 DP0", says)
    controller = Child(words, "controller of data-parallel ranks", reported)
    told = words.of_failure({controller.pid: controller.exitcode})
    assert told == (f"scheduler TP1 PP0 DP1 (process {killed.pid}) ended", "out of memory")


@pytest.mark.parametrize(
    ("status", "how"),
    [(3, "exited with status 3"), (-11, "was killed by SIGSEGV"), (-99, "was killed by signal 99")],
)
def test_a_process_that_ends_before_it_can_print_is_told_by_its_number(
    words: LastWords, status: int, how: str
) -> None:
    told = words.of_failure({4321: status})
    assert told == (f"process 4321, which was starting, {how}", "")


def test_the_end_of_what_a_process_prints_is_kept_in_whole_lines(
    words: LastWords, capfd: pytest.CaptureFixture[str]
) -> None:
    prints = "[print('line', number, file=sys.stderr) for number in range(5000)]"
    child = Child(words, "scheduler TP0", f"{prints}; sys.exit(1)")
    lines = words.of_failure({child.pid: 1}).printed.splitlines()
    assert lines == [f"line {number}" for number in range(5000 - len(lines), 5000)]
    assert 300 < len(lines) < 500
    assert len(capfd.readouterr().err.splitlines()) == 5000, "and all of it is passed on"


class Started(SglangThread):
    """A start of processes that the test says."""

    def __init__(self, *acts: str, seconds: float = 60.0) -> None:
        nothing: Any = None
        super().__init__({}, nothing, kept={}, unequal=False, strict=False, seconds=seconds)
        self._acts = acts

    def _launch(self) -> Any:
        self._words = words = LastWords()
        self._processes = [
            Child(words, f"scheduler TP{rank}", act) for rank, act in enumerate(self._acts)
        ]
        self._launching.set()
        while not self._stop.is_set() and "hangs" in self._acts[0]:
            time.sleep(0.01)
        raise RuntimeError("Rank 1 scheduler died")


async def test_a_start_that_fails_says_what_the_process_printed() -> None:
    thread = Started("pass", KILLED)
    with pytest.raises(StartError, match=r"TP1 .* by SIGKILL\).*at last:\nout of memory"):
        await thread.start()
    await thread.stop()


async def test_a_start_that_is_reported_to_fail_says_which_process_it_was() -> None:
    thread = Started("'hangs'", KILLED, seconds=30.0)
    thread._thread.start()
    await asyncio.to_thread(thread._launching.wait)
    assert thread.failed().endswith("was killed by SIGKILL")
    thread._processes[0].exitcode = -9  # with all others, as the start has failed
    thread._stop.set()
    told = r"(?s)scheduler TP1 \(.* was killed by SIGKILL\).*out of memory$"
    with pytest.raises(StartError, match=told):
        thread._started.result(30)
    await thread.stop()


def test_of_processes_that_hang_the_last_line_of_each_is_told(words: LastWords) -> None:
    Child(
        words, "scheduler TP0", "print('loads', file=sys.stderr); print('waits', file=sys.stderr)"
    )
    Child(words, "scheduler TP1", "pass")
    assert words.of_hang() == "scheduler TP0: waits; scheduler TP1: (nothing)"


async def test_a_start_that_hangs_ends_in_time_and_says_what_may_be_raised() -> None:
    thread = Started("'hangs'", seconds=0.05)
    with pytest.raises(
        StartError, match=r"not started in 0\.05 s: raise .* load_seconds .*nothing"
    ):
        await thread.start()
    await thread.stop()
    await asyncio.to_thread(thread._thread.join, 30)
    assert not thread._thread.is_alive()
