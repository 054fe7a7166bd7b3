"""Processes that have imported what programs import, and fork programs that would import the same:
SGLang takes 13 s of CPU time, and a worker imports SGLang three times, for itself, its scheduler
and the process that compiles forms; a component of Tandem takes half a second, and a stack has four
or more.

`install` has programs forked that the process of the tests starts. By clone(2)'s CLONE_PARENT each
becomes a child of the process that starts it. A program that imports SGLang has a fork server of
its own for its own children. So a program has the parent, arguments, environment and descriptors
that it would have without a fork server. Not so its seed of hashes, nor what else Python and the C
library read when a program starts, but for the number of arenas: those are the fork server's.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import itertools
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from multiprocessing import util
from typing import Any, Final, NamedTuple, NoReturn

WORKER = "--engine=sglang"
SCRIPTS = (
    "_side.py",
    "failing_start.py",
    "logits_engine.py",
    "prefix_events.py",
    "sglang_hand_over_tags.py",
)
"""How the names of tests' own programs end that import SGLang."""
FORMS, FURTHER = "tandem.logits.forms.process", "tandem.worker.further"
"""Programs of a worker's own that import SGLang where the worker does. The first one starts itself
anew, once.
"""
FUZZING = "fuzz/run.py"
COMPONENTS = (
    "tandem_frontend",
    "tandem_router",
    "tandem_prefill_worker",
    "tandem_decode_worker",
    "tandem_aggregated_worker",
)
POOLED = frozenset(
    (
        FORMS,
        "tandem_executor.local.__main__",
        "tandem_frontend.openai.moderations.process",
        "tandem_frontend.openai.reading.process",
    )
)
"""Programs of components' and executors' own, which tests of their parts start. Those of hooks are
not among them: what they import is looked at.
"""

OTHERS = "IMPORTS_SGLANG"
"""A variable of programs that import SGLang or what SGLang imports, though no argument says so."""

_SGLANG = ("sglang.srt.entrypoints.engine", "sglang.srt.managers.scheduler")
_COMPONENTS = (
    *(f"{component}.__main__" for component in COMPONENTS),
    "jinja2.ext",
    "uvicorn.lifespan.off",
    "tandem_answers.dialects",
    "tandem_answers.parsing.families",
    "tandem_executor.local.stack",
    "tandem_sim",
)
_READ = ("COVERAGE_", "GRPC_", "LD_", "MALLOC_", "PYTHON")
_ARENAS = "MALLOC_ARENA_MAX"
_FOUND_BY = ("PYTHONPATH", "PYTHONUNBUFFERED", _ARENAS)
"""Variables that a program has as it was given them, or that change nothing here."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A process of one thread can be forked."""

_ASKING = threading.Lock()
_NUMBERS = itertools.count()
"""Of what is asked: who gave up while a server still imported leaves an answer behind."""
_STARTING = ThreadPoolExecutor(1)
"""Starts the fork servers: a program that ends with its parent ends with the thread that started
its fork server.
"""
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT: Final = 0x8000
_CLONE_CHILD_CLEARTID: Final = 0x200000
_CLONE_CHILD_SETTID: Final = 0x1000000
_SET_PDEATHSIG: Final = 1
_GET_TID_ADDRESS: Final = 40
_SIZE_BYTES: Final = 8
_MOST_DESCRIPTORS: Final = 64
_ATTRIBUTES_BYTES: Final = 64
"""Of pthread_attr_t, which has 56 on one of the machines."""
_M_ARENA_MAX: Final = -8
_FREE: Final = 1000
"""From here on are descriptors that nobody has."""


class Kind(NamedTuple):
    """Programs that import the same."""

    imports: Sequence[str]
    environment: Callable[[], Mapping[str, str]]
    """What a fork server imports with."""
    read: tuple[str, ...]
    """How the names of variables begin that are read while it imports: a program for which one is
    another is started.
    """
    takes: Callable[[Sequence[str], Mapping[str, str], bool], bool]
    """Whether a program is of these, by its arguments, its environment, and by whether it leads a
    session.
    """


def install() -> None:
    """Programs that would import what a fork server has imported are forked from now on: Tandem's
    components, and where SGLang runs without a GPU what imports SGLang.
    """
    if os.uname().machine not in _CLONE or _number_address() is None:
        return
    kinds = [Kind(_COMPONENTS, _components_environment(), _READ, _is_component)]
    if find_spec("sglang") and find_spec("tandem_sglang_cpu"):
        kinds.insert(0, Kind(_SGLANG, _sglang_environment, ("SGLANG_",), _imports_sglang))
    _have_forked(kinds, _server)


@cache
def _sglang_environment() -> dict[str, str]:
    from tandem_sglang import arguments
    from tandem_sglang.options import Options

    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **arguments.environment(Options(), host="127.0.0.1", device="cpu"),
        **_ONE_THREAD,
    }


def _components_environment() -> Callable[[], Mapping[str, str]]:
    """The environment of now, before a test changes where modules are found. Where code is
    measured, programs are started: coverage begins in a process as Python starts.
    """
    now = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    now |= {**_ONE_THREAD, "PYTHONUNBUFFERED": "1"}
    return lambda: now


@cache
def _server(kind: Kind) -> socket.socket:
    """The fork server of the process of the tests. Its socket's end is its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        started = _STARTING.submit(
            subprocess.Popen,
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env=kind.environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        ).result()
    _send(ours, kind.imports)  # no arguments: what is forked is known by its own alone
    atexit.register(started.wait)
    atexit.register(ours.close)
    return ours


def _fits(kind: Kind, environment: Mapping[str, str]) -> bool:
    """Whether a server of this kind has imported with the same variables that are read then."""

    def read(variables: Mapping[str, str]) -> set[tuple[str, str]]:
        found = variables.keys() - _FOUND_BY
        return {(name, variables[name]) for name in found if name.startswith(kind.read)}

    return read(environment) <= read(kind.environment())


def _have_forked(kinds: Sequence[Kind], server: Callable[[Kind], socket.socket]) -> None:
    """What this process starts with subprocess and with multiprocessing is forked by a server. Not
    with subprocess, where the environment does not fit.
    """
    original, spawn = subprocess.Popen, util.spawnv_passfds

    class Popen(original):  # type: ignore[misc, valid-type]
        def _execute_child(self, args: Any, *more: Any) -> None:
            """Sets `pid`, and closes the child's ends of pipes, as what it takes the place of."""
            _, _, _, passed, folder, environment, _, _, _, *pipes = more[:15]
            *_, session, _ = more
            given = os.environ if environment is None else environment
            kind = _kind(kinds, args, given, session=session)
            if kind is None or not _fits(kind, given):
                super()._execute_child(args, *more)
                return
            ends = {0: pipes[0], 1: pipes[3], 2: pipes[5]}
            self.pid = _ask(
                server(kind),
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
        return _ask(server(kinds[0]), args, {number: number for number in (0, 1, 2, *passed)})

    subprocess.Popen = Popen  # type: ignore[misc]
    util.spawnv_passfds = spawned


def _kind(
    kinds: Iterable[Kind], args: Any, environment: Mapping[str, str], *, session: bool
) -> Kind | None:
    """Of which kind a program is; None: of none, it is started."""
    if isinstance(args, str | bytes | os.PathLike):
        return None
    program, *texts = map(os.fsdecode, args)
    if program != sys.executable:
        return None
    return next((kind for kind in kinds if kind.takes(texts, environment, session)), None)


def _imports_sglang(texts: Sequence[str], environment: Mapping[str, str], session: bool) -> bool:
    by_name = WORKER in texts or any(each.endswith(SCRIPTS) for each in texts)
    forms = FORMS in texts and "SGLANG_USE_CPU_ENGINE" in environment
    return by_name or forms or OTHERS in environment


def _imports_as_its_parent(
    texts: Sequence[str], environment: Mapping[str, str], session: bool
) -> bool:
    return _imports_sglang(texts, environment, session) or FORMS in texts or FURTHER in texts


def _is_component(texts: Sequence[str], environment: Mapping[str, str], session: bool) -> bool:
    """Whether a program is a component that is to serve, one of a component's own, or fuzzes
    components. Tests of how a component starts give the component no session of its own.
    """
    from tandem import launching

    if not session:
        fuzzes = "--child" in texts and texts[0].endswith(FUZZING)
        return fuzzes or not POOLED.isdisjoint(texts)
    programs = {launching.module_of(each.removeprefix("tandem_")) for each in COMPONENTS}
    script = launching.command("")[2]
    by_name = texts[0] == "-m" and f"{texts[1]}.__main__" in programs
    return by_name or (script in texts and not programs.isdisjoint(texts[:4]))


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
    number = next(_NUMBERS)
    order = {
        "number": number,
        "args": [os.fsdecode(each) for each in args],
        "descriptors": list(descriptors),
        "environment": dict(environment),
        "folder": os.fsdecode(folder or os.getcwd()),
        "session": session,
    }
    with _ASKING:
        _send(server, order, list(descriptors.values()))
        while True:
            answered, pid = (int.from_bytes(_exactly(server, _SIZE_BYTES)) for _ in range(2))
            if answered == number:
                return pid


def _send(server: socket.socket, words: Any, descriptors: Sequence[int] = ()) -> None:
    body = json.dumps(words).encode()
    socket.send_fds(server, [len(body).to_bytes(_SIZE_BYTES)], descriptors)
    server.sendall(body)


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
        asked.sendall(b"".join(each.to_bytes(_SIZE_BYTES) for each in (order["number"], pid)))


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
    if arenas := os.environ.get(_ARENAS):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, int(arenas))
    args = _without_options(order["args"])
    folders = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *base_path]
    if "-P" not in order["args"]:
        script = os.path.dirname(os.path.abspath(args[0]))
        folders.insert(0, {"-c": "", "-m": os.getcwd()}.get(args[0], script))
    sys.path[:] = folders
    return args


def _without_options(command: Sequence[str]) -> list[str]:
    _, *args = command
    while args[0].startswith("-") and args[0] not in ("-c", "-m"):
        option = args.pop(0)
        if option == "-W":
            warnings.simplefilter(args.pop(0))  # type: ignore[arg-type]
        assert option in ("-P", "-W"), option
    return args


def _start_anew(_: str, command: Sequence[str]) -> NoReturn:
    """In place of os.execv, for a program that starts itself anew: it imports the same again."""
    system = ctypes.PyDLL(None)
    # As the C library does where a program starts: the limit is how large threads' stacks are.
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
    stack, _hard = resource.getrlimit(resource.RLIMIT_STACK)
    failed = (
        system.pthread_attr_init(attributes)
        or system.pthread_attr_setstacksize(attributes, ctypes.c_size_t(stack))
        or system.pthread_setattr_default_np(attributes)
    )
    if failed:
        raise OSError(failed, os.strerror(failed))
    _run(_without_options(command))
    sys.exit()


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


def _main(asked: socket.socket) -> list[str]:
    """Returns in each process that is to run a program: its arguments."""
    size = int.from_bytes(_exactly(asked, _SIZE_BYTES))
    with warnings.catch_warnings(action="ignore"):
        for module in json.loads(_exactly(asked, size)):
            importlib.import_module(module)
    if find_spec("setproctitle"):
        import setproctitle

        setproctitle.getproctitle()  # finds the place of titles, before the environment moves
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [each for each in sys.path if each not in given]
    gc.collect()
    gc.freeze()
    while True:
        order = _serve(asked)
        args = _become(order, path)
        if FORMS in args:
            os.execv = _start_anew  # type: ignore[assignment]
        if FORMS in args or "sglang" not in sys.modules:
            break
        ours, asked = socket.socketpair()
        if os.fork():
            asked.close()
            break
        ours.close()
        _serve_alone(asked)
    if "sglang" in sys.modules and FORMS not in args:
        _have_forked([Kind((), dict, (), _imports_as_its_parent)], lambda _: ours)
    if find_spec("setproctitle"):
        setproctitle.setproctitle(" ".join(order["args"]))
    return args


if __name__ == "__main__":
    # A component's module is imported, and is a program that is run.
    warnings.filterwarnings("ignore", "'[a-z_.]+' found in sys.modules", RuntimeWarning)
    _run(_main(socket.socket(fileno=int(sys.argv[1]))))
