"""`tandem status`: what `tandem up` started, and whether it is ready."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tandem.cli import options, processes, prometheus, run_state
from tandem.cli.client import Client
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.run_state import RunState

PROBE_SECONDS = 2.0
READY, NOT_READY, NO_ANSWER, ENDED = "ready", "not ready", "no answer", "ended"


@dataclass(frozen=True)
class ComponentStatus:
    """One process of a stack, now."""

    component: str
    state: str
    """READY, NOT_READY, NO_ANSWER or ENDED."""
    pid: int
    seconds: float | None
    """How long the process has run; None: it has ended."""
    metrics: str
    """Where it answers /metrics and /ready, "host:port"."""
    log: str


@dataclass(frozen=True)
class StackStatus:
    """A stack, now. Without components nothing is up."""

    url: str
    engine: str
    components: list[ComponentStatus]

    @property
    def ready(self) -> bool:
        return bool(self.components) and all(each.state == READY for each in self.components)


def status(arguments: argparse.Namespace, console: Console) -> int:
    """Returns 0 where all of a stack is ready, else 1. Raises StartError for a state file that
    cannot be read.
    """
    found = of_stack(arguments.run_dir)
    if console.result(found):
        pass
    elif found.components:
        _show(found, console)
    else:
        console.line(run_state.nothing_in(arguments.run_dir))
    return 0 if found.ready else 1


def of_stack(run_dir: Path) -> StackStatus:
    """Ask each component that `tandem up` started from this folder. Raises StartError."""
    state = run_state.read(run_dir)
    if state is None or not state.processes:
        return StackStatus("", "", [])
    with ThreadPoolExecutor(len(state.processes)) as asking:
        found = asking.map(lambda name: _of_component(name, state, run_dir), state.processes)
        return StackStatus(state.url, state.engine, list(found))


def _of_component(name: str, state: RunState, run_dir: Path) -> ComponentStatus:
    process, metrics = state.processes[name], state.metrics.get(name, "")
    seconds = None
    if not processes.alive(process):
        word = ENDED
    else:
        seconds = round(processes.age(process), 1)
        client = Client(metrics, timeout_seconds=PROBE_SECONDS)
        answered = client.status(prometheus.ready_path(name))
        word = {200: READY, 0: NO_ANSWER}.get(answered, NOT_READY)
    log = str(run_dir / f"{name}.log")
    return ComponentStatus(name, word, process.pid, seconds, metrics, log)


def _show(found: StackStatus, console: Console) -> None:
    console.line(f"{found.engine} at {console.bold(found.url)}")
    console.table(
        (
            (
                each.component,
                each.state,
                str(each.pid),
                "" if each.seconds is None else _told(each.seconds),
                each.metrics,
                each.log,
            )
            for each in found.components
        ),
        head=("component", "state", "pid", "for", "metrics", "log"),
    )
    for each in found.components:
        if each.state != READY:
            console.failed(f"{each.component}: {each.state}; `tandem logs {each.component}`")


def _told(seconds: float) -> str:
    """A time in its two largest units: "4 min 3 s"."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    counted = ((days, "d"), (hours, "h"), (minutes, "min"), (whole % 60, "s"))
    first = next((place for place, (count, _) in enumerate(counted) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in counted[first : first + 2])


COMMAND = Command(options.add_run_dir, status, example="tandem status --json")
