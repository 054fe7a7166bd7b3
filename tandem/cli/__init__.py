"""The `tandem` command: its subcommands, their options, and how errors are shown.

`tandem --help` imports no command: a command's module is imported once the command is asked for.
"""

from __future__ import annotations

import sys

if sys.argv[0] == "-m" and "tandem.cli" in sys.orig_argv:
    # `python -m tandem.cli` imports this before its program, and Ctrl-C may come meanwhile.
    import tandem.component  # noqa: F401

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from tandem import launching
from tandem.version import add_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_OWN = {
    "init": "tandem.cli.init:COMMAND",
    "up": "tandem.cli.up:UP",
    "status": "tandem.cli.status:COMMAND",
    "logs": "tandem.cli.logs:COMMAND",
    "down": "tandem.cli.up:DOWN",
    "chat": "tandem.cli.chat:COMMAND",
    "demo": "tandem.cli.demo:COMMAND",
    "config": "tandem.cli.config_command:COMMAND",
    "verify": "tandem.cli.verification:COMMAND",
    "keys": "tandem.cli.keys:COMMAND",
}
"""Where the commands of this package are. Kits bring the others."""
_GROUPS = {
    "a stack on this machine": {
        "init": "Write a file of a stack, to begin with.",
        "up": "Start a frontend, a router and workers on this machine.",
        "status": "Show what `tandem up` started, and whether it is ready.",
        "logs": "Show what the components of a stack have logged.",
        "down": "Stop what `tandem up` started.",
        "chat": "Talk to a running frontend.",
        "demo": "Start a stack, run requests through it, check and show what happened.",
    },
    "look at what runs": {
        "top": "Show the fleet, the queues and slow workers, live.",
        "why": "Say where the time of a request went, and what each wait was for.",
        "verify": "Check that a deployment serves, and that its KV cache really moves.",
        "doctor": "Check this machine, and write a report of it to be sent along.",
        "monitoring": "Write dashboards and rules for a Prometheus and a Grafana that are there.",
    },
    "measure and plan": {
        "bench": "Send load to a frontend, and show how fast it answers.",
        "replay": "Say what fleets and policies would make of a trace, in virtual time.",
        "measure-times": "Measure how long workers take, for `tandem replay`.",
        "plan-fit": "Say whether a model fits on GPUs, and what fits beside it.",
    },
    "prepare": {
        "config": "Check a stack's file, or show a component's settings and their sources.",
        "check-hook": "Run an output hook against the calls a worker makes.",
        "keys": "Make keys for clients.",
        "fetch-model": "Bring a model's files into a folder, whole or not at all.",
        "certificates": "Make a CA and certificates for mutual TLS, or renew them in time.",
        "completion": "Write what completes commands and options in a shell.",
    },
}
_JSON = "Write the result as JSON to standard output, and all else to standard error."
_HELP = {name: text for group in _GROUPS.values() for name, text in group.items()}
"""All commands, in the order of `tandem --help`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 it failed, 2 it could not start, 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    if _asked(words) not in _HELP:
        parsed(words)  # shows the help or the version, or says what is wrong, and exits
    with launching.importing():
        from tandem.cli.client import ApiError
        from tandem.cli.console import Console
        from tandem.errors import StartError
    try:
        arguments = parsed(words)
        status: int = arguments.run(arguments, Console(json=arguments.json))
    except ApiError as error:
        return _complain(error, 1)
    except StartError as error:
        return _complain(error, 2)
    except KeyboardInterrupt:
        sys.stderr.write("\ntandem: interrupted\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `tandem ... | head`.
        sys.stderr.close()
        return 1
    return status


def _complain(error: Exception, status: int) -> int:
    sys.stderr.write(f"tandem: {error}\n")
    return status


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """A command's arguments, and its function as `run`. Raises StartError where no kit has it."""
    parser, commands = _parser()
    parsers = commands.choices
    if (asked := _asked(words)) not in parsers:
        if asked and words[0] == asked:
            _refuse(parser, f"there is no command {asked}", asked, parsers)
        return parser.parse_args(words)
    _load(parsers, asked)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        known = re.findall(r"--[a-z-]+", parsers[asked].format_usage())
        _refuse(parsers[asked], f"unknown: {' '.join(unknown)}", unknown[0], known)
    return arguments


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the options of all commands whose packages are installed."""
    from tandem.errors import StartError

    parser, commands = _parser()
    commands.help = None
    for name in commands.choices:
        with suppress(StartError):
            _load(commands.choices, name)
    return parser


def _load(parsers: Mapping[str, argparse.ArgumentParser], name: str) -> None:
    """Give a command's parser its options and example. Raises StartError."""
    with launching.importing():
        from tandem.cli import commands

        command = commands.load(name, _OWN.get(name, ""))
    command.add_arguments(parsers[name])
    if command.json:
        parsers[name].add_argument("--json", action="store_true", help=_JSON)
    parsers[name].set_defaults(run=command.run, json=False)
    parsers[name].epilog = f"example:\n  {command.example}"


def _refuse(
    parser: argparse.ArgumentParser, message: str, given: str, known: Iterable[str]
) -> NoReturn:
    """Exits with status 2."""
    from tandem.settings_file import nearest

    parser.error(f"{message}{nearest(given, known)}")


def _asked(words: Sequence[str]) -> str:
    """The command among the words; empty: none."""
    return next((word for word in words if not word.startswith("-")), "")


def _parser() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser, and the commands' parsers, without options."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tandem",
        usage="tandem [-h] [--version] COMMAND ...",
        description="Serve a language model with prefill and decode on separate workers.",
        epilog=_listed(),
        formatter_class=shape,
        allow_abbrev=False,
    )
    add_version(parser)
    # The epilog lists the commands, by groups.
    commands = parser.add_subparsers(
        prog="tandem", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for name, text in _HELP.items():
        commands.add_parser(name, help=text, description=text, formatter_class=shape)
    return parser, commands


def _listed() -> str:
    """The epilog of `tandem --help`: each group of commands under its title."""
    width = max(map(len, _HELP))
    groups = (
        "\n".join([f"{title}:", *(f"  {name:{width}}  {text}" for name, text in group.items())])
        for title, group in _GROUPS.items()
    )
    return "\n\n".join([*groups, "`tandem COMMAND --help` shows options and an example."])
