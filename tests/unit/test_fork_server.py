"""A program that is forked is as one that is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import pytest

from tandem import launching

SCRIPT = Path(fork_server.__file__).with_name("forked_side.py")
ANEW = """
import ctypes, json, os, resource, sys
if sys.argv[2:] == []:
    resource.setrlimit(resource.RLIMIT_STACK, (3 << 19, resource.RLIM_INFINITY))
    os.execv(sys.executable, [sys.executable, "-P", *sys.argv, "again"])
system, attributes, size = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_size_t()
system.pthread_getattr_default_np(attributes)
system.pthread_attr_getstacksize(attributes, ctypes.byref(size))
print(json.dumps([sys.argv[1:], __name__, size.value, "tandem_router" in sys.modules]))
"""
"""A program that starts itself anew, and then says how large its threads' stacks are."""
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(200)]


def said(folder: Path, *, session: bool = True, **environment: str) -> dict[str, Any]:
    readable, writable = os.pipe()
    os.write(writable, b"passed")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(readable), "and more"],
        input="read",
        capture_output=True,
        text=True,
        pass_fds=[readable],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "/nowhere", "FORKED": "yes", **environment},
        start_new_session=session,
        check=False,
    )
    os.close(readable)
    os.close(writable)
    assert ended.returncode == 3, ended.stderr
    return {**json.loads(ended.stdout), "arguments": json.loads(ended.stdout)["arguments"][1:]}


@pytest.mark.parametrize("session", [True, False])
def test_a_forked_program_sees_what_a_started_one_sees(tmp_path: Path, session: bool) -> None:
    seen = [
        said(tmp_path, session=session, **more) for more in ({}, {"SGLANG_NOT_AS_IMPORTED": "1"})
    ]
    assert [each.pop("imported") for each in seen] == [True, False]
    assert seen[0] == seen[1]
    assert seen[0] == {
        "arguments": ["and more"],
        "parent": os.getpid(),
        "leads_session": session,
        "folder": str(tmp_path),
        "variable": "yes",
        "path": [str(SCRIPT.parent), "/nowhere"],
        "input": "read",
        "passed": "passed",
        "threads": 1,
        "cpu_clock": True,
    }


@pytest.mark.parametrize(
    "command",
    [
        launching.command(launching.module_of("router"), "--print-config"),
        [sys.executable, "-m", "tandem_router", "--print-config"],
    ],
    ids=["as a stack starts it", "by its name"],
)
def test_a_forked_component_says_what_a_started_one_says(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[Any] = []
    ask = fork_server._ask
    monkeypatch.setattr(
        fork_server, "_ask", lambda *asked, **more: forked.append(asked[1]) or ask(*asked, **more)
    )

    def shown(*, session: bool = True, **environment: str) -> tuple[int, str, str]:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TANDEM_LISTEN": "127.0.0.1:7", **environment},
            start_new_session=session,
            check=False,
        )
        return ended.returncode, ended.stdout, ended.stderr

    first = shown()
    assert forked == [command]
    assert (first[0], first[2]) == (0, "")
    assert "listen: 127.0.0.1:7" in first[1]
    assert shown(GRPC_NOT_AS_IMPORTED="1") == shown(session=False) == first
    assert forked == [command]


def test_a_forked_program_that_starts_itself_anew_is_as_one_that_was_started(
    tmp_path: Path,
) -> None:
    script = tmp_path / "anew.py"
    script.write_text(ANEW)

    def said(**environment: str) -> list[Any]:
        ended = subprocess.run(
            [sys.executable, str(script), fork_server.FORMS],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        found: list[Any] = json.loads(ended.stdout)
        return found

    *forked, preloaded = said()
    *started, fresh = said(GRPC_NOT_AS_IMPORTED="1")
    assert (preloaded, fresh) == (True, False)
    assert forked == started == [[fork_server.FORMS, "again"], "__main__", 3 << 19]
