"""`tandem completion`: writes what completes commands and options in a shell, made by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from tandem import cli
from tandem.cli.commands import Command
from tandem.cli.console import Console

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = {"FILE": shtab.FILE, "FILE.svg": shtab.FILE, "DIR": shtab.DIRECTORY}
"""What completes a value, by the name that --help gives the value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="The shell that is to complete.")


def completion(arguments: argparse.Namespace, console: Console) -> int:
    parser = cli.whole_parser()
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in _FILES:
            action.complete = _FILES[action.metavar]  # type: ignore[attr-defined]
    console.write(shtab.complete(parser, arguments.shell) + "\n")
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments, of commands too."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)


COMMAND = Command(
    add_arguments,
    completion,
    json=False,  # what a shell reads
    example="source <(tandem completion bash)  # for good: in ~/.bashrc",
)
