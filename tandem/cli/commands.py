"""Commands that kits bring, found by their entry points.

`tandem --help` lists these commands without a kit: a kit is imported once one of its commands is
asked for.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tandem.cli.console import Console
from tandem.errors import StartError
from tandem.usercode.loader import entry_points, load_entry_point

GROUP = "tandem.commands"


@dataclass(slots=True, frozen=True)
class Command:
    """What an entry point names: the options of a command, and what the command does."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]
    """Returns the exit status. Raises ApiError and StartError, which `tandem` shows."""


def kit_command(name: str) -> Command:
    """Raises StartError: no kit offers the command, several do, or the kit cannot be imported."""
    if name not in entry_points(GROUP).names:
        raise StartError(f"`tandem {name}` needs: pip install 'tandem-serving[tools]'")
    with _quiet():
        command: Command = load_entry_point(GROUP, name)
    return command


@contextmanager
def _quiet() -> Iterator[None]:
    """Ctrl-C ends this process at once meanwhile, as while tandem.component imports a program."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
