"""Processes by pid *and* start time, so that a number the system gave to somebody else is never
signalled. Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.05
KILL_SECONDS = 5.0
"""For the system to remove a killed process."""


@dataclass(slots=True, frozen=True)
class Identity:
    """One process. `started` is in clock ticks since boot (proc_pid_stat(5), field 22)."""

    pid: int
    started: int


def identify(pid: int) -> Identity | None:
    """The running process of that number; None for none, or one that ended and was not yet
    collected.
    """
    stat = _stat(pid)
    return None if stat is None or stat.ended else Identity(pid, stat.started)


def alive(process: Identity) -> bool:
    return identify(process.pid) == process


def age(process: Identity) -> float:
    """Seconds since a process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / os.sysconf("SC_CLK_TCK")


def session(leader: Identity) -> list[Identity]:
    """All running processes of the session that `leader` started, itself included: an engine's own
    children too.

    A session's number is not given away while a member lives, so members whose leader has gone are
    still its own; when the number names another process now, there are none.
    """
    head = _stat(leader.pid)
    if head is not None and head.started != leader.started:
        return []
    members = []
    for entry in Path("/proc").iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdigit() else None
        if stat is not None and not stat.ended and stat.session == leader.pid:
            members.append(Identity(int(entry.name), stat.started))
    return members


def send(process: Identity, number: signal.Signals) -> bool:
    """Signal it if it is still the same process. Whether it was."""
    try:
        # A pidfd names one process for good: nothing takes its number between check and signal.
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def end(leaders: Collection[Identity], *, grace_seconds: float) -> list[Identity]:
    """SIGTERM to each leader of a session, one bounded wait, then SIGKILL to whatever is left of
    the sessions.

    Returns the leaders that had not ended by themselves within the time.
    """
    members = {leader: session(leader) for leader in leaders}
    for leader in leaders:
        send(leader, signal.SIGTERM)
    wait_gone(leaders, grace_seconds)
    overdue = [leader for leader in leaders if alive(leader)]
    for leader, known in members.items():
        left = session(leader) if any(map(alive, known)) else []
        for member in left:
            send(member, signal.SIGKILL)
        wait_gone(left, KILL_SECONDS)
    return overdue


def wait_gone(processes: Collection[Identity], seconds: float) -> bool:
    """Whether all of them ended within the time."""
    until = time.monotonic() + seconds
    while any(alive(process) for process in processes):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)
    return True


@dataclass(slots=True, frozen=True)
class _Stat:
    ended: bool
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command's name, in parentheses, may hold anything, spaces and parentheses too.
    fields = content.rpartition(")")[2].split()
    state, session_id, started = fields[0], int(fields[3]), int(fields[19])
    return _Stat(state in "ZX", session_id, started)
