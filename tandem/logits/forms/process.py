"""A process that compiles forms, started by the worker with the socket FD as its argument.

It loads what all forms share once, and compiles each form in a fork of itself, with limits of CPU
time, memory and stack. Whatever a form does there, it does to that fork: this process only waits,
and says how it ended. It ends when the worker closes its end of the socket, and with the worker.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Final, NoReturn

from tandem import launching
from tandem.logits.forms import productive
from tandem.logits.forms.compiler import Compiler
from tandem.logits.forms.wire import (
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Answer,
    Compiled,
    CompileOrder,
    CompilerBoot,
    TooDear,
    Wrong,
    answers,
    boots,
    encoder,
    orders,
)
from tandem.orphans import die_with
from tandem.pool.boot import Loaded
from tandem.pool.child import connect, ignore_signals, memory, receive
from tandem.pool.frames import frame

_DEFAULT_STACK_BYTES: Final = 2 * 1024 * 1024
"""A thread's, where the system sets no limit."""
_MOST_STACK_BYTES: Final = 4 * 1024 * 1024
"""A library's threads reserve their stacks within a form's memory, and SGLang raises the limit of
its processes to 64 MiB, of which eight threads would leave nothing.
"""
_READ_BYTES: Final = 1024 * 1024
_LEAST_BYTES: Final = 256 * 1024
"""What a small form counts for: it may fit into memory that was free here, and grow nothing."""
_MESSAGE_CHARACTERS: Final = 500
_TOO_DEEP: Final = "the form is nested too deep, by itself or through its references"


def main() -> int:
    if len(sys.argv) == 2:
        _again_with_small_stacks(sys.argv[1])
    ignore_signals()
    stream = connect()
    payload = receive(stream)
    if payload is None:
        return 1
    boot = boots.decode(payload)
    sys.path[:] = boot.import_path
    gc.disable()  # what it loads stays: collections would only make its start longer
    try:
        compiler = _load(boot)
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker says it
        stream.sendall(frame(encoder.encode(Loaded(f"{type(error).__name__}: {error}"))))
        return 2
    gc.freeze()  # or a collection in a fork would copy all of this process's memory
    gc.enable()
    stream.sendall(frame(encoder.encode(Loaded())))
    while (payload := receive(stream)) is not None:
        answer = _Fork(compiler, orders.decode(payload), boot).answer(stream)
        if answer is None:
            return 0
        stream.sendall(frame(encoder.encode(answer)))
    return 0


class _Fork:
    """The process of one form, from its fork to its end."""

    def __init__(self, compiler: Compiler, order: CompileOrder, boot: CompilerBoot) -> None:
        self._boot = boot
        self._began = time.monotonic()
        self._worker_gone = False
        parent = os.getpid()
        self._results, theirs = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _compile(compiler, order, boot, theirs, parent)
        os.close(theirs)

    def answer(self, stream: socket.socket) -> Answer | None:
        """Wait for its end, which comes within the limits. None: the worker has gone."""
        content = self._read(stream)
        if content is None:
            os.kill(self._pid, signal.SIGKILL)
        _, status, used = os.wait4(self._pid, 0)
        os.close(self._results)
        if self._worker_gone:
            return None
        if status == 0 and content:
            return answers.decode(content)
        return self._why(status, used)

    def _read(self, stream: socket.socket) -> bytes | None:
        """All it says. None: it is to be killed, because it takes too long or the worker has
        gone.
        """
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        poll.register(stream, select.POLLIN)  # nothing comes now but the end
        content = b""
        while (left := self._began + self._boot.seconds - time.monotonic()) > 0:
            ready = dict(poll.poll(left * 1000))
            self._worker_gone = stream.fileno() in ready
            if self._worker_gone or len(content) > MAX_MESSAGE_BYTES:
                return None
            if self._results in ready:
                part = os.read(self._results, _READ_BYTES)
                if not part:
                    return content
                content += part
        return None

    def _why(self, status: int, used: resource.struct_rusage) -> TooDear:
        boot = self._boot
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if ended_by == signal.SIGXCPU or used.ru_utime + used.ru_stime >= boot.cpu_seconds:
            return TooDear(f"compiling it takes more than {boot.cpu_seconds} s of CPU time")
        if time.monotonic() - self._began >= boot.seconds:
            return TooDear(f"compiling it takes more than {boot.seconds:g} s", lasting=False)
        if ended_by in (signal.SIGSEGV, signal.SIGBUS):
            return TooDear(_TOO_DEEP)
        return TooDear(f"compiling it takes more than {boot.memory_bytes // 2**20} MiB of memory")


def _compile(
    compiler: Compiler, order: CompileOrder, boot: CompilerBoot, results: int, parent: int
) -> NoReturn:
    """All of a fork's life."""
    status = 1
    try:
        die_with(parent)
        before = _confine(boot)
        with os.fdopen(results, "wb") as pipe:
            pipe.write(encoder.encode(_outcome(compiler, order, before)))
        status = 0
    finally:
        os._exit(status)


def _outcome(compiler: Compiler, order: CompileOrder, before: int) -> Answer:
    """`before`: this process's own memory when nothing was compiled."""
    try:
        productive.check(order.kind, order.source)
        compiled, shortest = compiler.compile(order.kind, order.source)
    except MemoryError:
        raise
    except RecursionError:
        return TooDear(_TOO_DEEP)
    except ValueError as error:
        return Wrong(str(error)[:_MESSAGE_CHARACTERS])
    except BaseException as error:  # noqa: BLE001 - a panic of a library, about a client's text
        return Wrong(f"it cannot be compiled ({type(error).__name__})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _, _, files = memory()
    texts = len(order.source) + len(compiled)
    return Compiled(compiled, max(peak - files - before, texts, _LEAST_BYTES), shortest)


def _confine(boot: CompilerBoot) -> int:
    """Put limits on this fork. Returns the bytes of memory that it has for itself: what it maps of
    files, libraries above all, it shares.
    """
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.dup2(silence, sys.stderr.fileno())  # libraries quote what they cannot compile
    size, resident, files = memory()
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, boot.cpu_seconds),
        (resource.RLIMIT_AS, size + boot.memory_bytes),
    ):
        resource.setrlimit(limit, (most, most + (limit == resource.RLIMIT_CPU)))
    return resident - files


def _again_with_small_stacks(descriptor: str) -> NoReturn:
    """Start this program anew: the size of a thread's stack is read when a program starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    theirs = _DEFAULT_STACK_BYTES if soft == resource.RLIM_INFINITY else soft
    ours = min(theirs // 2, _MOST_STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_STACK, (ours, hard))
    os.execv(sys.executable, launching.command(PROGRAM, descriptor, "again"))


def _load(boot: CompilerBoot) -> Compiler:
    module, _, name = boot.compiler.partition(":")
    compiler: Compiler = getattr(importlib.import_module(module), name)(**boot.arguments)
    return compiler


if __name__ == "__main__":
    sys.exit(main())
