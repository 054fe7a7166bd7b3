"""Starting and stopping SGLang's processes: the only module of the worker's own process, beside
joined.py of its further ones, that imports sglang, and it does so when an engine starts.

All of it happens in one thread that lives as long as the engine. A start takes tens of seconds, and
the worker's loop has to answer health checks and signals meanwhile; and SGLang's children ask the
kernel to kill them when the *thread* that made them ends (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import multiprocessing
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem import config, settled
from tandem.errors import StartError
from tandem_sglang import kept, mooncake, releases
from tandem_sglang.additions import Additions
from tandem_sglang.last_words import UNKNOWN, LastWords, Told

log = logging.getLogger(__name__)
_OWN_LOGGING = {
    "SGLANG_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("own_logging.json")),
}
"""SGLang configures the root logger of every process it runs in. In this one, which has its own, it
is given a configuration that says nothing."""
_STOP_SECONDS = 10.0
_KILL_AGAIN_SECONDS = 0.1
_DISMISS_SECONDS = 5.0
"""For schedulers to leave by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A running SGLang engine, as its thread hands it to the loop."""

    engine: Any
    """SGLang's Engine."""
    schedulers: Sequence[Any]
    """The schedulers' processes, one for each rank on this node; or with data-parallel ranks the
    one process that has those for children, and ends with the last of them.
    """
    manager: Any
    """The engine's TokenizerManager, which lives in this process. None where this node follows
    another.
    """
    new_request: Callable[..., Any]
    """GenerateReqInput."""
    processor: str
    """The serialised class that applies logits specs in the scheduler."""
    version: str
    arguments: Mapping[str, Any]
    """ServerArgs as SGLang resolved them."""
    capacity: int
    """Tokens the KV cache of a data-parallel rank holds."""
    freeze_request: Callable[[], Any]
    """FreezeGCReq."""
    shutdown_request: Callable[[], Any]
    """ShutdownReq."""
    abort_request: Callable[..., Any]
    """AbortReq."""

    def freeze_schedulers(self) -> None:
        """Leave what exists there now to no garbage collector: going through all of it would stop
        every stream for most of a second.
        """
        self.manager._dispatch_to_scheduler(self.freeze_request())

    async def dismiss_schedulers(self) -> None:
        """Let those of every node leave: where they are killed, followers see their leader crash.
        Bounded; a scheduler that hangs stays.
        """
        if self.manager._subprocess_watchdog is not None:
            self.manager._subprocess_watchdog.stop()  # it would report their end as a crash
        self.manager._dispatch_to_scheduler(self.shutdown_request())
        deadline = asyncio.get_running_loop().time() + _DISMISS_SECONDS
        while any(each.is_alive() for each in self.schedulers):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(_KILL_AGAIN_SECONDS)


class EngineThread:
    """The thread that starts an engine, keeps its children alive, and stops it."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        additions: Additions,
        *,
        kept: Mapping[str, Any],
        unequal: bool,
        seconds: float,
    ) -> None:
        """`kept`: arguments that SGLang must not change. `unequal`: the other phase divides KV
        among another number of ranks. `seconds`: a start may take so long.
        """
        self._arguments = arguments
        self._additions = additions
        self._kept = kept
        self._unequal = unequal
        self._others = set(multiprocessing.active_children())
        self._started: Future[Launched] = Future()
        self._ended: Future[None] = Future()
        self._stop = threading.Event()
        self._launching = threading.Event()
        self._seconds = seconds
        self._words: LastWords | None = None
        self._processes: Sequence[Any] = ()
        """Processes that SGLang has started, as multiprocessing's objects."""
        self._port_args: Any = None
        """SGLang's choice of the ports at which its processes meet."""
        self._gave_up: Told | None = None
        self._thread = threading.Thread(target=self._run, name="sglang-engine", daemon=True)

    async def start(self) -> Launched:
        """Load the model. Raises StartError, saying which process failed, or what each printed last
        of a start that hangs; what SGLang itself printed before says more.

        Cancelled, or out of time, it leaves the start running until `stop`.
        """
        self._thread.start()
        started = asyncio.wrap_future(self._started)
        started.add_done_callback(asyncio.Future.exception)  # seen, also when nobody waits any more
        await asyncio.wait([started], timeout=self._seconds)
        if not started.done():
            raise StartError(self._hangs())
        return started.result()

    def failed(self) -> str:
        """A process reported that it failed: which one, as far as is known. What it printed last is
        logged. A start that would wait for it for ever ends.
        """
        told = self._of_failure()
        log.error("a process of SGLang failed", extra={"reason": told.who, "printed": told.printed})
        if self._launching.is_set() and not self._started.done():
            self._gave_up = self._gave_up or told
            self._kill_children()
        return told.who

    async def stop(self) -> None:
        """End SGLang's processes, also in the middle of a start. Bounded."""
        self._stop.set()
        if not self._launching.is_set():
            return  # still importing: the thread ends by itself, before it makes a process
        ended = asyncio.wrap_future(self._ended)
        deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
        while not ended.done() and asyncio.get_running_loop().time() < deadline:
            if not self._started.done():
                self._kill_children()  # the start then fails
            await asyncio.wait([ended], timeout=_KILL_AGAIN_SECONDS)

    def _run(self) -> None:
        launched = None
        try:
            launched = self._launch()
        except BaseException as error:  # noqa: BLE001 - it belongs to who awaits the start
            told = self._gave_up or self._of_failure()
            known = self._gave_up is not None or told is not UNKNOWN
            failed = ChildProcessError(told.who) if known else error
            self._started.set_exception(_start_error(failed, told.printed))
        else:
            self._started.set_result(launched)
            self._stop.wait()
        try:
            if launched is not None:
                _close(launched)
        finally:
            self._kill_children()
            atexit.unregister(self._kill_children)
            if self._port_args is not None:
                _remove_files(self._port_args)
            if self._words is not None:
                self._words.close()
            self._ended.set_result(None)

    def _launch(self) -> Launched:
        if self._arguments.get("disaggregation_transfer_backend") == mooncake.NAME:
            mooncake.load()
        logging.getLogger("sglang").setLevel(logging.ERROR)
        with settled.loading():
            from sglang.srt.entrypoints import engine as upstream
        from sglang.srt.managers.io_struct import (
            AbortReq,
            FreezeGCReq,
            GenerateReqInput,
            ShutdownReq,
        )
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs
        from sglang.version import __version__

        from tandem_sglang import cpu
        from tandem_sglang.processor import TandemLogitProcessor

        known = frozenset(ServerArgs.__struct_fields__)
        given = releases.named_for(self._arguments, known)
        if unlisted := releases.check_known(given, known, __version__):
            told = {"arguments": ", ".join(unlisted), "sglang": __version__}
            log.warning("arguments that Tandem does not know are passed on to SGLang", extra=told)
        load_plugins()
        if self._additions.on_cpu:
            cpu.verify()
        self._words = LastWords()
        additions = replace(self._additions, errors=self._words.outbox)
        if self._arguments.get("dp_size", 1) > 1:
            from tandem_sglang import controller

            controller.put_in_place(upstream, additions)
        self._launching.set()
        atexit.register(self._kill_children)  # else an exit without `stop` would wait for them
        if self._stop.is_set():
            raise StartError("stopped while starting")
        with ExitStack() as until_children:
            until_children.enter_context(config.exported(_OWN_LOGGING))
            engine = self._engine_class(upstream.Engine, additions, until_children)(**given)
        engine.loop.close()  # made for SGLang's synchronous calls, which nobody makes here
        atexit.unregister(engine.shutdown)  # which keeps the engine
        started = engine._scheduler_init_result
        return Launched(
            engine=engine,
            schedulers=[
                child
                for child in multiprocessing.active_children()
                if child.pid in started.all_child_pids
            ],
            manager=engine.tokenizer_manager,
            new_request=GenerateReqInput,
            processor=TandemLogitProcessor.to_str(),
            version=__version__,
            arguments=releases.resolved(engine.server_args),
            capacity=started.scheduler_infos[0]["max_total_num_tokens"],
            freeze_request=FreezeGCReq,
            shutdown_request=ShutdownReq,
            abort_request=AbortReq,
        )

    def _engine_class(self, base: Any, additions: Additions, until_children: ExitStack) -> Any:
        """SGLang's Engine, whose schedulers have the additions, without its detokenizer and its way
        of ending. `until_children` is closed before its processes are made.
        """
        from tandem_sglang import scheduler

        thread = self

        class Engine(base):
            run_scheduler_process_func = staticmethod(
                functools.partial(scheduler.run_scheduler, additions=additions)
            )

            @classmethod
            def _launch_scheduler_processes(
                cls, server_args: Any, port_args: Any, *others: Any, **more: Any
            ) -> Any:
                """Here SGLang has read the model's configuration, and no weights yet."""
                thread._port_args = port_args
                thread._check(server_args)
                until_children.close()
                made = super()._launch_scheduler_processes(server_args, port_args, *others, **more)
                _, thread._processes = made
                return made

            @classmethod
            def _launch_detokenizer_subprocesses(
                cls, *_args: Any, **_kwargs: Any
            ) -> tuple[list[Any], list[str]]:
                """None: the worker makes the text, and the scheduler sends it the token ids."""
                return [], []

            def shutdown(self) -> None:
                """Nothing: SGLang calls it at the exit, of an engine that failed to start too, and
                it would kill every child of this process. `_run` ends what there is.
                """

        return Engine

    def _check(self, server_args: Any) -> None:
        """Raises StartError where SGLang made of our arguments what this engine cannot run with."""
        from tandem_sglang import unequal

        kept.check(self._kept, releases.resolved(server_args))
        if self._unequal:
            unequal.check(server_args)

    def _of_failure(self) -> Told:
        if self._words is None:
            return UNKNOWN
        return self._words.of_failure({each.pid: each.exitcode for each in self._processes})

    def _hangs(self) -> str:
        said = self._words.of_hang() if self._words is not None else "nothing"
        return (
            f"SGLang has not started in {self._seconds:g} s: raise engine option load_seconds where"
            f" the model is still being loaded; its processes printed last: {said or 'nothing'}"
        )

    def _kill_children(self) -> None:
        """Kill the children of this engine; SGLang itself would kill every child of the process."""
        children = [each for each in multiprocessing.active_children() if each not in self._others]
        for child in children:
            child.kill()
        for child in children:
            child.join(_STOP_SECONDS)


def _close(launched: Launched) -> None:
    """Do what SGLang's Engine.shutdown does, without killing the children of others."""
    manager = launched.manager
    if manager is None:
        return  # a follower has nothing but schedulers
    if manager._subprocess_watchdog is not None:
        manager._subprocess_watchdog.stop()
    if manager.bootstrap_server is not None:
        manager.bootstrap_server.close()
    launched.engine.send_to_rpc.close(linger=0)
    manager.recv_from_detokenizer.close(linger=0)
    manager.send_to_scheduler.close(linger=0)
    manager.cuda_vmm_feature_transport.shutdown()


def _remove_files(port_args: Any) -> None:
    """SGLang leaves the sockets and the shared memory of each engine behind."""
    from sglang.srt.managers.load_snapshot import shm_path_for

    ports = [value for value in vars(port_args).values() if isinstance(value, str)]
    for port in ports:
        if port.startswith("ipc://"):
            Path(port.removeprefix("ipc://")).unlink(missing_ok=True)
    Path(shm_path_for(port_args.instance_id)).unlink(missing_ok=True)


def _start_error(error: BaseException, printed: str) -> StartError:
    if isinstance(error, StartError):
        return error
    if isinstance(error, ModuleNotFoundError):
        message = (
            f"the sglang engine cannot be imported ({error}): "
            "`make full` in a checkout, else install tandem-serving[sglang], and"
            " kits/sglang-cpu where there is no GPU"
        )
    else:
        message = (
            f"SGLang did not start ({type(error).__name__}: {error}); the lines printed before "
            "say more" + (f", at last:\n{printed}" if printed else "")
        )
    wrapped = StartError(message)
    wrapped.__cause__ = error
    return wrapped
