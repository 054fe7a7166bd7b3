"""The `tandem` command: its subcommands, their options, and how errors are shown.

`tandem --help` imports no command: a command's module is imported once the command is asked for.
"""

from __future__ import annotations

import sys

if sys.argv[0] == "-m" and "tandem.cli" in sys.orig_argv:
    # `python -m tandem.cli` imports this before its program, and Ctrl-C may come meanwhile.
    import tandem.component  # noqa: F401

import argparse
from collections.abc import Sequence

from tandem import launching

DISTRIBUTION = "tandem-serving"
_OWN = {
    "init": "tandem.cli.init:COMMAND",
    "up": "tandem.cli.up:UP",
    "down": "tandem.cli.up:DOWN",
    "chat": "tandem.cli.chat:COMMAND",
    "demo": "tandem.cli.demo:COMMAND",
    "config": "tandem.cli.config_command:COMMAND",
    "verify": "tandem.cli.verification:COMMAND",
    "keys": "tandem.cli.keys:COMMAND",
}
"""Where the commands of this package are. Kits bring the others."""
_HELP = {
    "init": "Write a file of a stack, to begin with.",
    "up": "Start a frontend, a router and workers on this machine.",
    "down": "Stop what `tandem up` started.",
    "chat": "Talk to a running frontend.",
    "demo": "Start a stack, run requests through it, check and show what happened.",
    "config": "Check a stack's file, or show a component's settings and their sources.",
    "check-hook": "Run an output hook against the calls a worker makes.",
    "verify": "Check that a deployment serves, and that its KV cache really moves.",
    "bench": "Send load to a frontend, and show how fast it answers.",
    "replay": "Say what fleets and policies would make of a trace, in virtual time.",
    "measure-times": "Measure how long workers take, for `tandem replay`.",
    "top": "Show the fleet, the queues and slow workers, live.",
    "why": "Say where the time of a request went, and what each wait was for.",
    "monitoring": "Write dashboards and rules for a Prometheus and a Grafana that are there.",
    "keys": "Make keys for clients.",
    "fetch-model": "Bring a model's files into a folder, whole or not at all.",
    "plan-fit": "Say whether a model fits on GPUs, and what fits beside it.",
    "certificates": "Make a CA and certificates for mutual TLS, or renew them in time.",
}
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
        status: int = arguments.run(arguments, Console())
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
    parser, parsers = _parser()
    if (asked := _asked(words)) in _HELP:
        with launching.importing():
            from tandem.cli import commands

            command = commands.load(asked, _OWN.get(asked, ""))
        command.add_arguments(parsers[asked])
        parsers[asked].set_defaults(run=command.run)
    return parser.parse_args(words)


def _asked(words: Sequence[str]) -> str:
    """The command among the words; empty: none."""
    return next((word for word in words if not word.startswith("-")), "")


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and that of each command, without options."""
    parser = argparse.ArgumentParser(
        prog="tandem",
        description="Serve a language model with prefill and decode on separate workers.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="Show the version of this program, and exit."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    return parser, {name: commands.add_parser(name, help=text) for name, text in _HELP.items()}


class _Version(argparse.Action):
    """Looks the version up once it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        sys.stdout.write(f"tandem {version}\n")
        parser.exit()
