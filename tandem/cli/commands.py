"""Commands of `tandem`, and where each is: in this package, or in a kit by its entry point."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.cli.console import Console
from tandem.errors import StartError
from tandem.usercode.loader import entry_points, load_entry_point, load_object

GROUP = "tandem.commands"


@dataclass(slots=True, frozen=True)
class Command:
    """What an entry point names: the options of a command, and what the command does."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]
    """Returns the exit status. Raises ApiError and StartError, which `tandem` shows."""
    example: str
    """A line that does something useful as it stands, or with other names in it."""
    json: bool = True
    """Whether the command takes --json, and gives its result to Console.result."""


def adding(parser: argparse._ActionsContainer) -> Callable[..., None]:
    """`add_argument` of a parser or a group, in short: it takes an option with its metavar, such as
    "--requests N", and then its type.
    """

    def add(option: str, kind: Callable[[str], object] | None = None, **how: Any) -> None:
        name, _, metavar = option.partition(" ")
        if metavar:
            how["metavar"] = metavar
        if kind is not None:
            how["type"] = kind
        parser.add_argument(name, **how)

    return add


def load(name: str, where: str) -> Command:
    """The command that `where`, "module:NAME", holds, or without it the one that a kit offers by
    its name. Raises StartError: no kit offers the command, several do, or its module cannot be
    imported.
    """
    if not where and name not in entry_points(GROUP).names:
        raise StartError(f"`tandem {name}` needs: pip install tandem-tools")
    command: Command = load_object(where) if where else load_entry_point(GROUP, name)
    return command
