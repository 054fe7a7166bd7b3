"""`tandem config`: what a component is told, whether a component or a whole stack would start, and
the schema of a stack's file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tandem import launching
from tandem.cli import options
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.plan import COMPONENTS, plan
from tandem.errors import ConfigError, StartError
from tandem.process import would_start

CHECK, SCHEMA = "check", "schema"
CHECK_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "component",
        choices=(*COMPONENTS, CHECK, SCHEMA),
        help=f"The component whose settings are shown. `{CHECK} COMPONENT` or `{CHECK} FILE` says"
        f" whether the component, or the stack of FILE, would start. `{SCHEMA}` shows the JSON"
        " schema of a stack's file.",
    )
    parser.add_argument(
        "flags",
        nargs=argparse.REMAINDER,
        help="Flags of the component, as the component itself takes them.",
    )


def config(arguments: argparse.Namespace, console: Console) -> int:
    """Raises StartError."""
    if arguments.component == SCHEMA:
        from tandem.cli import schema  # which imports what components are made of

        console.write(json.dumps(schema.of_stack(), indent=2, ensure_ascii=False) + "\n")
        return 0
    if arguments.component == CHECK:
        return _check(arguments.flags, console)
    command = launching.command(
        launching.module_of(arguments.component), "--print-config", *arguments.flags
    )
    return subprocess.run(command, check=False).returncode


def _check(given: Sequence[str], console: Console) -> int:
    """In processes of their own, which do what components do at their start: import and build an
    operator's code too. That may take any time, and end its process. Raises StartError.
    """
    name, *flags = given or [""]
    if name in COMPONENTS:
        ((status, said),) = _checked({name: tuple(flags)}, stderr=None)
        console.write(said)
        return status
    if flags or not os.path.isfile(name):
        raise ConfigError(
            f"`tandem config {CHECK}` needs the file of a stack, or a component, one of"
            f" {', '.join(COMPONENTS)}, not {' '.join(given)!r}"
        )
    bad = [said for status, said in _checked(dict(of_flags([f"--config={name}"]))) if status]
    # Workers of both phases say the same of the same line.
    for said in {_message(each): each for each in reversed(bad)}.values():
        sys.stderr.write(said)
    if not bad:
        console.line(f"ok: tandem up --config {name} would start")
    return 2 if bad else 0


def _message(said: str) -> str:
    """What a component says of its settings, without its name."""
    return said.partition(": ")[2]


def of_flags(flags: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The components that `tandem up` with these flags starts, each with its own flags. Raises
    StartError.
    """
    parser = argparse.ArgumentParser()
    options.add_stack(parser)
    asked = options.stack_options(parser.parse_args(flags))
    with ExitStack() as held:
        for launch in plan(replace(asked, port=0), held=held):
            yield launch.component, launch.flags


def _checked(
    flags: Mapping[str, Sequence[str]], *, stderr: int | None = subprocess.STDOUT
) -> Iterator[tuple[int, str]]:
    """The status of each component, and its words: from its complaint on, where it has one.
    Raises StartError.
    """
    ends_at = time.monotonic() + CHECK_SECONDS
    with ExitStack() as running:
        processes = {}
        for name, each in flags.items():
            processes[name] = running.enter_context(_started(name, each, stderr))
            running.callback(processes[name].kill)  # before its end is awaited
        for name, process in processes.items():
            try:
                said, _ = process.communicate(timeout=max(0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise StartError(
                    f"the check took longer than {CHECK_SECONDS:g} s: importing or building a class"
                    " that the settings name did not end"
                ) from None
            if not process.returncode and would_start(name) not in said:
                raise StartError(
                    "the check ended without an answer: an operator's code ended the process"
                )
            yield process.returncode, said[max(0, said.find(f"tandem {name}: ")) :]


def _started(component: str, flags: Sequence[str], stderr: int | None) -> subprocess.Popen[str]:
    command = launching.command(
        launching.module_of(component), "--check-config", *flags, parent=os.getpid()
    )
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


COMMAND = Command(add_arguments, config, example="tandem config check stack.yaml")
