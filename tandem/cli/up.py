"""`tandem up` and `tandem down`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from tandem import config
from tandem.cli import options, processes, run_state
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.plan import GivenFile, StackOptions
from tandem.cli.prometheus import PROMETHEUS
from tandem.cli.run_state import RunState
from tandem.cli.stack import POLL_SECONDS, STOP_SECONDS, Stack, stop_in_order
from tandem.cli.status import of_stack
from tandem.errors import StartError

START_SECONDS = {"sim": 60.0, "sglang": 600.0, "vllm": 600.0}
SIMULATED = "The engine is simulated: its answers are random words."
PLAYGROUND = "playground"
OFFERED = (PLAYGROUND, "allow_reports")
"""Settings of the frontend that are on here, where nobody but the machine's user comes, unless the
environment or the stack's file turns them off.
"""


def add_up(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    options.add_stack(parser)
    add("--detach", action="store_true", help="Leave the stack running; `tandem down` stops it.")
    add(
        "--monitoring",
        action="store_true",
        help="Start the installed Prometheus too, which watches the stack by Tandem's rules.",
    )


def up(arguments: argparse.Namespace, console: Console) -> int:
    run_dir: Path = arguments.run_dir
    wanted = options.stack_options(arguments)
    monitoring = (run_dir / PROMETHEUS).resolve() if arguments.monitoring else None
    wanted = replace(wanted, flags=offers(wanted.file), monitoring=monitoring)
    present = run_state.read(run_dir)
    if present is not None and present.running():
        _check_same(present, wanted)
        console.line(f"already up: {present.engine} at {present.url} (`tandem down` stops it)")
        _give_addresses(arguments, console)
        return 0
    _check_engine(wanted.engine)
    parent = 0 if arguments.detach else os.getpid()
    with stopping_on_signals(), Stack(wanted, run_dir=run_dir, parent=parent) as stack:
        owner = processes.identify(parent) if parent else None
        run_state.write(run_dir, run_state.of(stack, owner=owner))
        try:
            bring_up(stack, console)
            show_endpoint(stack, console)
            _give_addresses(arguments, console)
            if not arguments.detach:
                _stay(stack, console)
        except BaseException:
            run_state.remove(run_dir)
            raise
        if arguments.detach:
            stack.release()
        else:
            run_state.remove(run_dir)
    return 0


def _give_addresses(arguments: argparse.Namespace, console: Console) -> None:
    if arguments.json:
        console.result(of_stack(arguments.run_dir))


def offers(file: GivenFile | None = None) -> dict[str, tuple[str, ...]]:
    """Flags for what the stack offers to its user alone, unless its file decides that. Raises
    ConfigError.
    """
    said = file.content.frontend.config if file else {}
    on = (
        name for name in OFFERED if name not in said and config.inherited_switch(name, default=True)
    )
    return {"frontend": tuple(map(config.flag_name, on))}


def _check_engine(name: str) -> None:
    """Raises StartError where no worker of the stack could start, before one is."""
    if name == "sglang" and find_spec("sglang") is None:
        raise StartError(
            "SGLang is not installed: pip install 'tandem-serving[sglang]' on a machine with a GPU,"
            " `make full` in a checkout; --engine sim does without"
        )
    if name == "vllm" and find_spec("vllm") is None:
        raise StartError(
            "vLLM is not installed: `make vllm` installs it in a checkout, in an environment of its"
            " own"
        )


def _check_same(present: RunState, wanted: StackOptions) -> None:
    """Raises StartError where the running stack is not the wanted one, or lacks a process."""
    where = f"{present.engine} at {present.url}"
    if ended := sorted(present.processes.keys() - set(present.running())):
        raise StartError(f"up is {where}, but {', '.join(ended)} ended: `tandem down` first")
    asked = run_state.asked_for(wanted)
    if other := sorted(name for name, value in present.asked.items() if value != asked.get(name)):
        raise StartError(
            f"up is {where}, with other options ({', '.join(other)}): `tandem down` first"
        )


def bring_up(stack: Stack, console: Console) -> None:
    """Wait until the stack is ready, showing what is awaited. Raises StackError."""
    engine = stack.options.engine
    console.line(f"starting {len(stack.components)} processes with engine {engine}")
    console.line(console.dim(f"    logs: {stack.run_dir}/<component>.log"))
    try:
        seconds = stack.wait_ready(timeout_seconds=START_SECONDS[engine], progress=console.live)
    finally:
        console.clear()
    console.done("ready", seconds)
    console.table(
        (component.name, component.address, f"pid {component.pid}")
        for component in stack.components.values()
    )


def show_endpoint(stack: Stack, console: Console) -> None:
    console.line()
    if stack.options.engine == "sim":
        console.line(SIMULATED)
        console.line()
    models = [stack.model, *(each.name for each in stack.options.further_models)]
    console.line(f"endpoint: {console.bold(f'{stack.url}/v1')}   model: {', '.join(models)}")
    if config.flag_name(PLAYGROUND) in stack.components["frontend"].launch.flags:
        console.line(f"playground: {stack.url}/playground")
    if PROMETHEUS in stack.components:
        console.line(f"{PROMETHEUS}: http://{stack.components[PROMETHEUS].address}")
    console.line()
    console.line(f"curl -N {stack.url}/v1/chat/completions -H 'content-type: application/json' \\")
    file = stack.options.file
    if config.inherited("api_keys") or (file and file.content.frontend.apiKeysFile.path):
        console.line("  -H 'authorization: Bearer KEY' \\")
    message = '"messages": [{"role": "user", "content": "Tell me a story."}]'
    asked = f'"model": "{stack.model}", "stream": true, "max_tokens": 64, {message}'
    console.line(f"  -d '{{{asked}}}'")
    console.line()


def _stay(stack: Stack, console: Console) -> None:
    console.line("Ctrl-C stops it.")
    try:
        while True:
            stack.check_running()
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        console.line()
        console.line("stopping: frontend, router, then the workers (Ctrl-C again kills them)")
    began = time.monotonic()
    report_stopped(stack.stop(), time.monotonic() - began, console)


def down(arguments: argparse.Namespace, console: Console) -> int:
    run_dir: Path = arguments.run_dir
    state = run_state.read(run_dir)
    if state is None:
        console.line(run_state.nothing_in(run_dir))
        console.result({"stopped": [], "killed": []})
        return 0
    began = time.monotonic()
    console.live(f"stopping {state.engine} at {state.url}", 0.0)
    was_up = state.running()
    if state.owner is not None and processes.send(state.owner, signal.SIGTERM):
        # The foreground `tandem up` stops its own in order; only what it leaves is ended below.
        processes.wait_gone([state.owner], 3 * STOP_SECONDS)
    killed = stop_in_order(state.processes, grace_seconds=STOP_SECONDS)
    run_state.remove(run_dir)
    console.clear()
    if was_up:
        report_stopped(killed, time.monotonic() - began, console)
    else:
        console.line("nothing was running any more")
    console.result({"stopped": was_up, "killed": killed})
    return 0


def report_stopped(killed: list[str], seconds: float | None, console: Console) -> None:
    console.done("stopped", seconds)
    for name in killed:
        console.failed(f"{name} did not stop in time and was killed")


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """SIGTERM, and the end of the terminal (SIGHUP, unless `nohup` has it ignored), stop a
    foreground command as Ctrl-C does.
    """
    on_terminal = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell and the kernel both send one
            for stream in on_terminal:  # what is still said there would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


UP = Command(add_up, up, example="tandem up --engine sim --decode 2 --port 8080")
DOWN = Command(options.add_run_dir, down, example="tandem down")
