"""A whole stack on this machine: frontend, router, prefill and decode workers as processes of their
own.

Synchronous, for the command line, tests and benchmarks:

    with Stack(StackOptions(model_path=path, engine="sim"), run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=30)
        client = Client(stack.url)
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tandem import config, launching, orphans
from tandem.cli import processes, prometheus
from tandem.cli.client import Client
from tandem.cli.log_files import last_lines
from tandem.cli.plan import Launch, StackOptions, plan
from tandem.errors import StartError

POLL_SECONDS = 0.2
PROBE_SECONDS = 1.0
STOP_SECONDS = 40.0
"""Given to each group of components to drain; a little more than their own bound."""
UNREADY_STOP_SECONDS = 5.0
"""Time to stop a stack that never was ready, and so has nothing to drain."""
TAIL_LINES = 25


class StackError(StartError):
    """The stack did not start, or one of its processes ended. The message ends with the tail of its
    log.
    """


@dataclass(slots=True)
class Component:
    """One running process of a stack."""

    launch: Launch
    process: subprocess.Popen[bytes]
    identity: processes.Identity
    log: Path
    ready: bool = False

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def address(self) -> str:
        return self.launch.address

    @property
    def pid(self) -> int:
        return self.process.pid


class Stack:
    """Starts, watches and stops the processes of one stack. As a context manager it starts on entry
    and stops on exit.
    """

    def __init__(self, options: StackOptions, *, run_dir: Path, parent: int = 0) -> None:
        """`parent`: this process, where none of the stack's may outlive it, however it ends; 0:
        they live on when it is killed.
        """
        self.options = options
        self.run_dir = run_dir
        self.components: dict[str, Component] = {}
        self._was_ready = False
        self._parent = parent
        self._ports = ExitStack()

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        scheme = "https" if config.inherited("https_cert") else "http"
        return f"{scheme}://{self.components['frontend'].address}"

    @property
    def model(self) -> str:
        """The model's name, as requests give it."""
        said = self.options.file.content.model.name if self.options.file else ""
        asked = config.inherited("served_model_name") or said
        return asked or self.options.model_path.resolve().name

    def start(self) -> None:
        """Start every process; they come up together and find each other."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StackError(f"cannot make the folder {self.run_dir}: {error.strerror}") from error
        launches = plan(self.options, held=self._ports)
        if self.options.monitoring:
            targets = {each.name: each.metrics for each in launches if not each.program}
            prometheus.write_configuration(self.options.monitoring, targets)
        for launch in launches:
            self.components[launch.name] = self._spawn(launch)

    def restart(self, name: str) -> Component:
        """Start a component again that has ended, at the same address."""
        self.components[name] = self._spawn(self.components[name].launch)
        return self.components[name]

    def wait_ready(
        self,
        *,
        timeout_seconds: float,
        progress: Callable[[str, float], None] | None = None,
    ) -> float:
        """Wait until the frontend says that a request would succeed now. Returns the seconds it
        took.

        `progress` is told what is awaited, and for how long. Raises StackError when a process ends
        or the time is over.
        """
        began = time.monotonic()
        while True:
            self.check_running()
            waited = time.monotonic() - began
            waiting = [each for each in self.components.values() if not self._probe(each)]
            if not waiting:
                self._was_ready = True
                return waited
            if waited > timeout_seconds:
                raise StackError(
                    f"not ready after {timeout_seconds:.0f} s: {_names(waiting)}\n"
                    f"{tail(waiting[0].log)}"
                )
            if progress is not None:
                progress(f"waiting for {_names(waiting)}", waited)
            time.sleep(POLL_SECONDS)

    def check_running(self) -> None:
        """Raises StackError when a process has ended."""
        for component in self.components.values():
            status = component.process.poll()
            if status is not None:
                raise StackError(f"{component.name} {_ending(status)}\n{tail(component.log)}")

    def stop(self, *, grace_seconds: float | None = None) -> list[str]:
        """Frontend, routers, workers: each drains, within its bound. Returns the names of those
        that had to be killed.
        """
        if grace_seconds is None:
            grace_seconds = STOP_SECONDS if self._was_ready else UNREADY_STOP_SECONDS
        identities = {name: each.identity for name, each in self.components.items()}
        try:
            killed = stop_in_order(identities, grace_seconds=grace_seconds)
        except KeyboardInterrupt:
            killed = stop_in_order(identities, grace_seconds=0.0)
        for component in self.components.values():
            component.process.wait(timeout=processes.KILL_SECONDS)
        self.components.clear()
        self._ports.close()
        return killed

    def release(self) -> None:
        """Leave the processes running, and no longer own them."""
        for component in self.components.values():
            # Else Popen would warn when it is collected: the process runs on.
            component.process.returncode = 0
        self.components.clear()
        self._ports.close()

    def _spawn(self, launch: Launch) -> Component:
        """Raises StackError where the log cannot be written, or no process can be had."""
        log = self.run_dir / f"{launch.name}.log"
        module, parent = launching.module_of(launch.component), self._parent
        command, prepare = launching.command(module, *launch.flags, parent=parent), None
        if launch.program:
            command = [launch.program, *launch.flags]
            prepare = partial(orphans.die_with, parent) if parent else None
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=config.environment({"PYTHONUNBUFFERED": "1"}),
                    start_new_session=True,  # Ctrl-C is for us: we stop them in order.
                    preexec_fn=prepare,
                )
        except OSError as error:
            raise StackError(f"cannot start {launch.name} with the log {log}: {error}") from error
        identity = processes.identify(process.pid)
        if identity is None:
            process.wait()
            identity = processes.Identity(process.pid, 0)
        return Component(launch, process, identity, log)

    def _probe(self, component: Component) -> bool:
        # The frontend is asked each time: it speaks for the whole stack.
        if component.name == "frontend" or not component.ready:
            admin = Client(component.launch.metrics, timeout_seconds=PROBE_SECONDS)
            component.ready = admin.status(prometheus.ready_path(component.name)) == 200
        return component.ready


def stop_in_order(
    components: Mapping[str, processes.Identity], *, grace_seconds: float
) -> list[str]:
    """End the components of a stack: frontend, routers, then all workers together. Returns the
    names of the killed.
    """
    kinds = {name: name.partition("-")[0] for name in components}
    groups = [
        [name for name in components if kinds[name] == "frontend"],
        [name for name in components if kinds[name] == "router"],
        [name for name in components if kinds[name] not in ("frontend", "router")],
    ]
    killed = []
    for group in groups:
        overdue = processes.end([components[name] for name in group], grace_seconds=grace_seconds)
        killed += [name for name in group if components[name] in overdue]
    return killed


def _names(components: list[Component]) -> str:
    return ", ".join(component.name for component in components)


def _ending(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def tail(log: Path) -> str:
    """The end of a log, to be shown below a failure."""
    shown = "\n".join(f"    {line}" for line in last_lines(log, TAIL_LINES)) or "    (no output)"
    return f"  the end of {log}:\n{shown}"
