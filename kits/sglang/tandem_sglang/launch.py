"""Starting and stopping SGLang's processes: the only module of the worker's own process, beside
joined.py of its further ones, that imports sglang, and it does so when an engine starts.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import multiprocessing
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem import config, settled
from tandem.engine.base import EngineUnit
from tandem.engine.thread import KILL_AGAIN_SECONDS, EngineThread
from tandem_sglang import fitting, kept, mooncake, releases
from tandem_sglang.additions import Additions
from tandem_sglang.last_words import UNKNOWN, LastWords, Told

log = logging.getLogger(__name__)
_OWN_LOGGING = {
    "SGLANG_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("own_logging.json")),
}
"""SGLang configures the root logger of every process it runs in. In this one, which has its own, it
is given a configuration that says nothing."""
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
    messages: Any
    """SGLang's module io_struct: the classes of what its processes say to each other."""
    processor: str
    """The serialised class that applies logits specs in the scheduler."""
    version: str
    arguments: Mapping[str, Any]
    """ServerArgs as SGLang resolved them."""
    capacity: int
    """Tokens the KV cache of a data-parallel rank holds."""
    units: Sequence[EngineUnit] = ()
    """What Tandem has put into SGLang, and what it could not."""

    def lacks(self, unit: str) -> bool:
        """Whether that unit could not be put in."""
        return any(unit == each.name for _, each in fitting.lacking(self.units))

    def freeze_schedulers(self) -> None:
        """Leave what exists there now to no garbage collector: going through all of it would stop
        every stream for most of a second.
        """
        self.manager._dispatch_to_scheduler(self.messages.FreezeGCReq())

    def close_sockets(self) -> None:
        """Close those of this process's tokenizer manager."""
        self.manager.recv_from_detokenizer.close(linger=0)
        self.manager.send_to_scheduler.close(linger=0)
        self.manager.cuda_vmm_feature_transport.shutdown()

    async def dismiss_schedulers(self) -> None:
        """Let those of every node leave: where they are killed, followers see their leader crash.
        Bounded; a scheduler that hangs stays.
        """
        if self.manager._subprocess_watchdog is not None:
            self.manager._subprocess_watchdog.stop()  # it would report their end as a crash
        self.manager._dispatch_to_scheduler(self.messages.ShutdownReq())
        deadline = asyncio.get_running_loop().time() + _DISMISS_SECONDS
        while any(each.is_alive() for each in self.schedulers):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(KILL_AGAIN_SECONDS)


class SglangThread(EngineThread[Launched]):
    """See EngineThread. A failure says which process failed, and a start that hangs what each
    printed last.
    """

    name = "SGLang"
    needed = (
        "`make full` in a checkout, else install tandem-serving[sglang], and kits/sglang-cpu where"
        " there is no GPU"
    )

    def __init__(
        self,
        arguments: Mapping[str, Any],
        additions: Additions,
        *,
        kept: Mapping[str, Any],
        unequal: bool,
        strict: bool,
        seconds: float,
    ) -> None:
        """`kept`: arguments that SGLang must not change. `unequal`: the other phase divides KV
        among another number of ranks. `strict`: no unit may be lacking. `seconds`: a start may take
        so long.
        """
        super().__init__(seconds)
        self._arguments = arguments
        self._additions = additions
        self._kept = kept
        self._unequal = unequal
        self._strict = strict
        self._words: LastWords | None = None
        self._processes: Sequence[Any] = ()
        """Processes that SGLang has started, as multiprocessing's objects."""
        self._port_args: Any = None
        """SGLang's choice of the ports at which its processes meet."""
        self._gave_up: Told | None = None

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

    def withdraw(self, launched: Launched, otherwise: Mapping[str, str]) -> Launched:
        """The started engine without the units that proved `otherwise`, by name: they count as
        lacking. Raises StartError where the engine may not be without one.
        """
        units = fitting.withdrawn(launched.units, otherwise)
        new = [each for each in units if each.name in otherwise]
        fitting.check(new, self._additions, strict=self._strict, release=launched.version)
        return replace(launched, units=units)

    def _failure(self, error: BaseException) -> tuple[BaseException, str]:
        told = self._gave_up or self._of_failure()
        known = self._gave_up is not None or told is not UNKNOWN
        return ChildProcessError(told.who) if known else error, told.printed

    def _printed_by_now(self) -> str:
        said = self._words.of_hang() if self._words is not None else ""
        return f"; its processes printed last: {said or 'nothing'}"

    def _close(self, launched: Launched) -> None:
        """Do what SGLang's Engine.shutdown does, without killing the children of others."""
        manager = launched.manager
        if manager is None:
            return  # a follower has nothing but schedulers
        if manager._subprocess_watchdog is not None:
            manager._subprocess_watchdog.stop()
        if manager.bootstrap_server is not None:
            manager.bootstrap_server.close()
        launched.engine.send_to_rpc.close(linger=0)
        launched.close_sockets()

    def _clean_up(self) -> None:
        atexit.unregister(self._kill_children)
        if self._port_args is not None:
            _remove_files(self._port_args)
        if self._words is not None:
            self._words.close()

    def _launch(self) -> Launched:
        if self._arguments.get("disaggregation_transfer_backend") == mooncake.NAME:
            mooncake.load()
        logging.getLogger("sglang").setLevel(logging.ERROR)
        with settled.loading():
            from sglang.srt.entrypoints import engine as upstream
        from sglang.srt.managers import io_struct
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs
        from sglang.version import __version__

        from tandem_sglang import cpu
        from tandem_sglang.processor import TandemLogitProcessor

        known = frozenset(ServerArgs.__struct_fields__)
        given = releases.named_for(self._arguments, known)
        if unlisted := releases.check_known(given, known, __version__):
            told = {"reason": f"SGLang {__version__}: {', '.join(unlisted)}"}
            log.warning("arguments that Tandem does not know are passed on to SGLang", extra=told)
        load_plugins()
        if self._additions.on_cpu:
            cpu.verify()
        units = fitting.look(self._additions)
        fitting.check(units, self._additions, strict=self._strict, release=__version__)
        self._words = LastWords()
        additions = replace(
            self._additions, errors=self._words.outbox, left_out=fitting.left_out(units)
        )
        fitting.put_in(additions, in_worker=True)
        atexit.register(self._kill_children)  # else an exit without `stop` would wait for them
        self._begin_launch()
        with ExitStack() as until_children:
            until_children.enter_context(config.exported(_OWN_LOGGING))
            engine = self._engine_class(upstream.Engine, additions, until_children)(**given)
        engine.loop.close()  # made for SGLang's synchronous calls, which nobody makes here
        atexit.unregister(engine.shutdown)  # which keeps the engine
        started = engine._scheduler_init_result
        return Launched(
            engine=engine,
            manager=engine.tokenizer_manager,
            messages=io_struct,
            processor=TandemLogitProcessor.to_str(),
            version=__version__,
            schedulers=[
                child
                for child in multiprocessing.active_children()
                if child.pid in started.all_child_pids
            ],
            arguments=releases.resolved(engine.server_args),
            capacity=started.scheduler_infos[0]["max_total_num_tokens"],
            units=units,
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


def _remove_files(port_args: Any) -> None:
    """SGLang leaves the sockets and the shared memory of each engine behind."""
    from sglang.srt.managers.load_snapshot import shm_path_for

    ports = [value for value in vars(port_args).values() if isinstance(value, str)]
    for port in ports:
        if port.startswith("ipc://"):
            Path(port.removeprefix("ipc://")).unlink(missing_ok=True)
    Path(shm_path_for(port_args.instance_id)).unlink(missing_ok=True)
