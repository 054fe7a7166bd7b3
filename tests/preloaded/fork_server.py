"""A process that has imported SGLang, and forks programs that would import SGLang too: the import
takes 13 s of CPU time, and a worker makes it twice, for itself and for its scheduler.

`install` has programs forked that the process of the tests starts. By clone(2)'s CLONE_PARENT each
becomes a child of the process that starts it, and each has a fork server of its own for its own
children. So a program has the parent, arguments, environment and descriptors that it would have
without a fork server. Not so its seed of hashes, nor whatever Python and the C library read when a
program starts: those are the fork server's.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from multiprocessing import util
from typing import Any, Final

WORKER = "--engine=sglang"
SCRIPTS = (
    "_side.py",
    "failing_start.py",
    "logits_engine.py",
    "prefix_events.py",
)
"""How the names of tests' own programs end that import SGLang."""

_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT: Final = 0x8000
_CLONE_CHILD_CLEARTID: Final = 0x200000
_CLONE_CHILD_SETTID: Final = 0x1000000
_SET_PDEATHSIG: Final = 1
_GET_TID_ADDRESS: Final = 40
_SIZE_BYTES: Final = 8
_MOST_DESCRIPTORS: Final = 64
_FREE: Final = 1000
"""From here on are descriptors that nobody has."""


def install() -> None:
    """Where SGLang runs without a GPU, programs that would import it are forked from now on."""
    can = os.uname().machine in _CLONE and _number_address() is not None
    if can and find_spec("sglang") and find_spec("tandem_sglang_cpu"):
        _have_forked(_server, _as_imported)


@cache
def _environment() -> dict[str, str]:
    """What SGLang is imported with."""
    from tandem_sglang import arguments
    from tandem_sglang.options import Options

    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **arguments.environment(Options(), host="127.0.0.1", device="cpu"),
        "OPENBLAS_NUM_THREADS": "1",  # a process of one thread can be forked
    }


@cache
def _server() -> socket.socket:
    """The fork server of the process of the tests. Its socket's end is its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(started.wait)
    atexit.register(ours.close)
    return ours


def _as_imported(environment: Mapping[str, str]) -> bool:
    """SGLang would read nothing else there when it is imported."""
    given = {name: value for name, value in environment.items() if name.startswith("SGLANG_")}
    return given.items() <= _environment().items()


def _have_forked(
    server: Callable[[], socket.socket], fits: Callable[[Mapping[str, str]], bool]
) -> None:
    """What this process starts with subprocess and with multiprocessing is forked by a server. Not
    with subprocess, where the environment does not fit.
    """
    original, spawn = subprocess.Popen, util.spawnv_passfds

    class Popen(original):  # type: ignore[misc, valid-type]
        def _execute_child(self, args: Any, *more: Any) -> None:
            """Sets `pid`, and closes the child's ends of pipes, as what it takes the place of."""
            _, _, _, passed, folder, environment, _, _, _, *pipes = more[:15]
            given = os.environ if environment is None else environment
            if not (_imports_sglang(args) and fits(given)):
                super()._execute_child(args, *more)
                return
            *_, session, _ = more
            ends = {0: pipes[0], 1: pipes[3], 2: pipes[5]}
            self.pid = _ask(
                server(),
                args,
                {number: number if end == -1 else end for number, end in ends.items()}
                | {number: number for number in passed},
                environment=given,
                folder=folder,
                session=session,
            )
            self._child_created = True
            self._close_pipe_fds(*pipes)

    def spawned(path: bytes, args: Sequence[Any], passed: Sequence[int]) -> int:
        if "sglang" not in sys.modules or os.fsencode("--multiprocessing-fork") not in map(
            os.fsencode, args
        ):
            return spawn(path, args, passed)
        return _ask(server(), args, {number: number for number in (0, 1, 2, *passed)})

    subprocess.Popen = Popen  # type: ignore[misc]
    util.spawnv_passfds = spawned


def _imports_sglang(args: Any) -> bool:
    if isinstance(args, str | bytes | os.PathLike):
        return False
    program, *texts = map(os.fsdecode, args)
    script = any(each.endswith(SCRIPTS) for each in texts)
    return program == sys.executable and (script or WORKER in texts)


def _ask(
    server: socket.socket,
    args: Iterable[Any],
    descriptors: Mapping[int, int],
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Any = None,
    session: bool = False,
) -> int:
    """Have a program run. `descriptors`: the numbers that it is to have, and those that they are of
    here. Returns its pid.
    """
    order = {
        "args": [os.fsdecode(each) for each in args],
        "descriptors": list(descriptors),
        "environment": dict(environment),
        "folder": os.fsdecode(folder or os.getcwd()),
        "session": session,
    }
    body = json.dumps(order).encode()
    socket.send_fds(server, [len(body).to_bytes(_SIZE_BYTES)], list(descriptors.values()))
    server.sendall(body)
    return int.from_bytes(_exactly(server, _SIZE_BYTES))


def _exactly(server: socket.socket, size: int) -> bytes:
    received = server.recv(size, socket.MSG_WAITALL)
    if len(received) != size:
        raise EOFError("the fork server, or who asks it, has ended")
    return received


# --- in the process that has imported SGLang ----------------------------------------------------


def _serve(asked: socket.socket) -> dict[str, Any]:
    """Fork for whoever asks, until nobody can. Returns in each fork: what it is to run."""
    while True:
        size, came, _, _ = socket.recv_fds(asked, _SIZE_BYTES, _MOST_DESCRIPTORS)
        if not size:
            os._exit(0)
        order: dict[str, Any] = json.loads(_exactly(asked, int.from_bytes(size)))
        if not (pid := _fork_for_parent()):
            asked.close()
            _place(dict(zip(order["descriptors"], came, strict=True)))
            return order
        for each in came:
            os.close(each)
        asked.sendall(pid.to_bytes(_SIZE_BYTES))


def _fork_for_parent() -> int:
    """As os.fork, but the child's parent is this process's own."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    machine, number = os.uname().machine, ctypes.c_void_p(_number_address())
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    last = (number, 0) if machine == "x86_64" else (0, number)
    python.PyOS_BeforeFork()
    pid: int = system.syscall(_CLONE[machine], flags, 0, 0, *last)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    if pid < 0:
        raise OSError("no process can be had")
    return pid


def _number_address() -> int | None:
    """Where the C library keeps this thread's number, which the kernel has to write for a child.
    None: the kernel does not say.
    """
    found = ctypes.c_void_p()
    failed = ctypes.PyDLL(None).prctl(_GET_TID_ADDRESS, ctypes.byref(found))
    if failed or not found.value:
        return None
    known = ctypes.c_int.from_address(found.value).value
    return found.value if known == threading.get_native_id() else None


def _place(descriptors: Mapping[int, int]) -> None:
    """Give those that came the numbers that they are to have."""
    for number, came in descriptors.items():
        os.dup2(came, _FREE + number)
    for came in descriptors.values():
        os.close(came)
    for number in descriptors:
        os.dup2(_FREE + number, number)
        os.close(_FREE + number)


def _become(order: Mapping[str, Any], base_path: Sequence[str]) -> list[str]:
    """Be as a new interpreter is. Returns its arguments without its options."""
    if order["session"]:
        os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    args: list[str] = order["args"][1:]
    folders = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *base_path]
    kinds = ("-c", "-m")
    while args[0].startswith("-") and args[0] not in kinds:
        option = args.pop(0)
        if option == "-W":
            warnings.simplefilter(args.pop(0))  # type: ignore[arg-type]
        assert option in ("-P", "-W"), option
    if "-P" not in order["args"]:
        script = os.path.dirname(os.path.abspath(args[0]))
        folders.insert(0, {"-c": "", "-m": os.getcwd()}.get(args[0], script))
    sys.path[:] = folders
    return args


def _serve_alone(own: socket.socket) -> None:
    """Keep no other descriptor, and live no longer than who starts what is to be forked."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, own.fileno())
    os.closerange(own.fileno() + 1, _FREE)


def _run(args: Sequence[str]) -> None:
    """As the interpreter would with these arguments."""
    kind, *rest = args
    if kind == "-m":
        sys.argv[:] = rest
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__", "__builtins__": builtins})
    else:
        sys.argv[:] = args
        runpy.run_path(kind, run_name="__main__")


def _main() -> list[str]:
    """Returns in each process that is to run a program: its arguments."""
    with warnings.catch_warnings(action="ignore"):
        import sglang.srt.entrypoints.engine
        import sglang.srt.managers.scheduler  # noqa: F401
    import setproctitle

    setproctitle.getproctitle()  # finds the place of titles, before the environment moves
    path = list(sys.path)
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        order = _serve(asked)
        args = _become(order, path)
        ours, asked = socket.socketpair()
        if os.fork():
            asked.close()
            break
        ours.close()
        _serve_alone(asked)
    setproctitle.setproctitle(" ".join(order["args"]))
    _have_forked(lambda: ours, lambda _: True)
    return args


if __name__ == "__main__":
    _run(_main())
