"""Processes that are asked over a socket: none is left of a start that is given up."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import pytest

from tandem import child_process
from tandem.child_process import ChildProcess, LostError

PROGRAM = "tandem.logits.forms.process"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """What was started; each takes a while."""
    found: list[subprocess.Popen[bytes]] = []
    spawn = child_process._spawn

    def slowly(*arguments: Any) -> subprocess.Popen[bytes]:
        time.sleep(0.2)
        found.append(spawn(*arguments))
        return found[-1]

    monkeypatch.setattr(child_process, "_spawn", slowly)
    return found


async def test_a_start_that_is_given_up_leaves_no_process(
    started: list[subprocess.Popen[bytes]],
) -> None:
    starting = asyncio.create_task(ChildProcess.start(PROGRAM, max_message_bytes=1000))
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [process.returncode is None for process in started] == [False]


async def test_a_start_whose_socket_fails_leaves_no_process(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(**_: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(asyncio, "open_unix_connection", fail)
    with pytest.raises(LostError, match="no more files"):
        await ChildProcess.start(PROGRAM, max_message_bytes=1000)
    assert [process.returncode is None for process in started] == [False]
