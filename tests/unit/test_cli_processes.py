"""Ending processes: those that were started, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.cli import processes
from tandem.cli.processes import Identity

READY = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); "
OBEDIENT = READY + "import time; time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + OBEDIENT
WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
sys.stdout.write(f"{child.pid}\\n")
sys.stdout.flush()
time.sleep(60)
"""


class Started:
    """A process in a session of its own, which has said its first line."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        found = processes.identify(self.process.pid)
        assert found is not None
        self.identity = found


@pytest.fixture
def start() -> Iterator[type[Started]]:
    made: list[Started] = []

    class Remembered(Started):
        def __init__(self, code: str) -> None:
            super().__init__(code)
            made.append(self)

    yield Remembered
    for started in made:
        started.process.kill()
        started.process.wait(timeout=10)
        assert started.process.stdout is not None
        started.process.stdout.close()


def test_a_process_that_obeys_ends_by_itself(start: type[Started]) -> None:
    started = start(OBEDIENT)
    assert processes.end([started.identity], grace_seconds=10) == []
    assert not processes.alive(started.identity)
    assert started.process.wait(timeout=10) == -signal.SIGTERM


def test_a_process_that_ignores_sigterm_is_killed_and_named(start: type[Started]) -> None:
    stubborn, obedient = start(STUBBORN), start(OBEDIENT)
    late = processes.end([stubborn.identity, obedient.identity], grace_seconds=0.3)
    assert late == [stubborn.identity]
    assert stubborn.process.wait(timeout=10) == -signal.SIGKILL


def test_what_a_process_started_ends_with_it(start: type[Started]) -> None:
    started = start(WITH_CHILD)
    child = processes.identify(int(started.said))
    assert child is not None
    assert processes.end([started.identity], grace_seconds=10) == []
    assert not processes.alive(child)


def test_a_number_that_was_given_to_another_process_is_never_signalled(
    start: type[Started],
) -> None:
    started = start(OBEDIENT)
    before = Identity(started.identity.pid, started.identity.started - 1)
    assert not processes.alive(before)
    assert not processes.send(before, signal.SIGKILL)
    assert processes.end([before], grace_seconds=0.1) == []
    assert processes.alive(started.identity)


def test_a_process_that_is_gone_is_not_found() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=10)
    assert processes.identify(ended.pid) is None
    assert not processes.send(Identity(ended.pid, 1), signal.SIGTERM)


def test_this_process_is_found_with_a_name_that_holds_parentheses(tmp_path: Path) -> None:
    tricky = tmp_path / "a) b (c"
    tricky.symlink_to(sys.executable)
    process = subprocess.Popen([tricky, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = processes.identify(process.pid)
        own = processes.identify(os.getpid())
        assert found is not None
        assert own is not None
        assert found.started >= own.started > 0
    finally:
        process.communicate(b"\n", timeout=10)
