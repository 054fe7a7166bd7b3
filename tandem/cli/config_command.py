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

import yaml

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

        made = schema.of_stack()
        if not console.result(made):
            console.write(json.dumps(made, indent=2, ensure_ascii=False) + "\n")
        return 0
    if arguments.component == CHECK:
        return _check(arguments, console)
    command = launching.command(
        launching.module_of(arguments.component), "--print-config", *arguments.flags
    )
    shown = subprocess.PIPE if arguments.json else None
    process = subprocess.run(command, check=False, stdout=shown)
    if process.returncode == 0 and arguments.json:
        console.result(yaml.safe_load(process.stdout))
    return process.returncode


def _check(arguments: argparse.Namespace, console: Console) -> int:
    """In processes of their own, which do what components do at their start: import and build an
    operator's code too. That may take any time, and end its process. Raises StartError.
    """
    given: list[str] = arguments.flags
    name, *flags = given or [""]
    if name in COMPONENTS:
        stderr = subprocess.STDOUT if arguments.json else None
        ((status, said),) = _checked({name: tuple(flags)}, console, stderr=stderr)
        console.clear()
        console.write(said)
        console.result({"ok": not status, "problems": [said.strip()] if status else []})
        return status
    if flags or not os.path.isfile(name):
        raise ConfigError(
            f"`tandem config {CHECK}` needs the file of a stack, or a component, one of"
            f" {', '.join(COMPONENTS)}, not {' '.join(given)!r}"
        )
    flags_by_component = dict(of_flags([f"--config={name}"]))
    bad = [said for status, said in _checked(flags_by_component, console) if status]
    console.clear()
    # Workers of both phases say the same of the same line.
    problems = list({_message(each): each for each in reversed(bad)}.values())
    for said in problems:
        sys.stderr.write(said)
    console.result({"ok": not bad, "problems": [each.strip() for each in problems]})
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
    flags: Mapping[str, Sequence[str]],
    console: Console,
    *,
    stderr: int | None = subprocess.STDOUT,
) -> Iterator[tuple[int, str]]:
    """The status of each component, and its words: from its complaint on, where it has one.
    Raises StartError.
    """
    began = time.monotonic()
    ends_at = began + CHECK_SECONDS
    with ExitStack() as running:
        processes = {}
        for name, each in flags.items():
            processes[name] = running.enter_context(_started(name, each, stderr))
            running.callback(processes[name].kill)  # before its end is awaited
        for number, (name, process) in enumerate(processes.items()):
            share = number / len(processes)
            console.live(f"checking {name}", time.monotonic() - began, share=share)
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
