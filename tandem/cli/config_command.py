"""`tandem config`: what a component is told, and whether it would start so."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence

from tandem import launching
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.plan import COMPONENTS
from tandem.errors import ConfigError, StartError
from tandem.process import would_start

CHECK = "check"
CHECK_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "component",
        choices=(*COMPONENTS, CHECK),
        help=f"Whose settings; `{CHECK} COMPONENT`: say whether it would start with them.",
    )
    parser.add_argument(
        "flags",
        nargs=argparse.REMAINDER,
        help="Flags of the component, as the component itself takes them.",
    )


def config(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.component == CHECK:
        return _check(arguments.flags, console)
    command = launching.command(
        launching.module_of(arguments.component), "--print-config", *arguments.flags
    )
    return subprocess.run(command, check=False).returncode


def _check(given: Sequence[str], console: Console) -> int:
    """In a process of its own, which does what the component would do at its start: import and
    build an operator's code too. That may take any time, and end its process. Raises StartError.
    """
    component, *flags = given or [""]
    if component not in COMPONENTS:
        raise ConfigError(
            f"`tandem config {CHECK}` needs a component, one of {', '.join(COMPONENTS)},"
            f" not {component!r}"
        )
    command = launching.command(
        launching.module_of(component), "--check-config", *flags, parent=os.getpid()
    )
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise StartError(
            f"the check took longer than {CHECK_SECONDS:g} s: importing or building a class that"
            " the settings name did not end"
        ) from None
    console.write(done.stdout)
    if not done.returncode and would_start(component) not in done.stdout:
        raise StartError("the check ended without an answer: an operator's code ended the process")
    return done.returncode


COMMAND = Command(add_arguments, config)
