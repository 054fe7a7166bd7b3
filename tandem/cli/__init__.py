"""The `tandem` command: its subcommands, their options, and how errors are shown."""

from __future__ import annotations

import sys

if sys.argv[0] == "-m" and "tandem.cli" in sys.orig_argv:
    # `python -m tandem.cli` imports this before its program, and Ctrl-C may come meanwhile.
    import tandem.component  # noqa: F401

import argparse
import os
import subprocess
from collections.abc import Sequence
from importlib import metadata

from tandem import launching
from tandem.cli import chat, demo, keys, options, up, verify
from tandem.cli.client import ApiError
from tandem.cli.commands import Command, kit_command
from tandem.cli.console import Console
from tandem.cli.plan import COMPONENTS
from tandem.errors import ConfigError, StartError
from tandem.process import would_start

DISTRIBUTION = "tandem-serving"
_OWN = {
    "verify": Command(verify.add_arguments, verify.verify),
    "keys": Command(keys.add_arguments, keys.keys),
}
_HELP = {
    "check-hook": "Run an output hook against the calls a worker makes.",
    "verify": "Check that a deployment serves, and that its KV cache really moves.",
    "bench": "Send load to a frontend, and show how fast it answers.",
    "replay": "Say what fleets and policies would make of a trace, in virtual time.",
    "measure-times": "Measure how long workers take, for `tandem replay`.",
    "top": "Show the fleet, the queues and slow workers, live.",
    "monitoring": "Write dashboards and rules for a Prometheus and a Grafana that are there.",
    "keys": "Make keys for clients.",
    "fetch-model": "Bring a model's files into a folder, whole or not at all.",
    "plan-fit": "Say whether a model fits on GPUs, and what fits beside it.",
    "certificates": "Make a CA and certificates for mutual TLS, or renew them in time.",
}
"""In the order of `tandem --help`. Kits bring the commands that are none of `_OWN`."""
CHECK = "check"
_CHECKED = f"Whose settings; `{CHECK} COMPONENT`: say whether it would start with them."
CHECK_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 it failed, 2 it could not start, 130 interrupted."""
    try:
        arguments = parsed(sys.argv[1:] if argv is None else argv)
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
    """A command's arguments. Raises StartError where no kit that is installed has the command."""
    asked = next((word for word in words if not word.startswith("-")), "")
    return _parser(asked).parse_args(words)


def _parser(asked: str = "") -> argparse.ArgumentParser:
    """The command `asked` gets its options, and no other command of a kit. Raises StartError."""
    parser = argparse.ArgumentParser(
        prog="tandem",
        description="Serve a language model with prefill and decode on separate workers.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tandem {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(commands)
    _add_down(commands)
    _add_chat(commands)
    _add_demo(commands)
    _add_config(commands)
    for name, text in _HELP.items():
        command_parser = commands.add_parser(name, help=text)
        command = _OWN.get(name) or (kit_command(name) if name == asked else None)
        if command is not None:
            command.add_arguments(command_parser)
            command_parser.set_defaults(run=command.run)
    return parser


def _add_up(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "up", help="Start a frontend, a router and workers on this machine."
    )
    options.add_stack(parser)
    parser.add_argument(
        "--detach", action="store_true", help="Leave the stack running; `tandem down` stops it."
    )
    parser.set_defaults(run=up.up)


def _add_down(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("down", help="Stop what `tandem up` started.")
    options.add_run_dir(parser)
    parser.set_defaults(run=up.down)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("chat", help="Talk to a running frontend.")
    parser.add_argument(
        "message", nargs="?", help="A message to send; without one, a conversation is held."
    )
    parser.add_argument(
        "--url", default=f"http://127.0.0.1:{options.DEFAULT_PORT}", help="[%(default)s]"
    )
    parser.add_argument("--model", default="", help="Model to ask. [the first one that is served]")
    parser.add_argument("--max-tokens", type=int, default=256, help="[%(default)s]")
    options.add_trust(parser)
    parser.set_defaults(run=chat.chat)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo", help="Start a stack, run requests through it, check and show what happened."
    )
    options.add_engine(parser)
    options.add_run_dir(parser)
    parser.set_defaults(run=demo.demo)


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "config", help="Print a component's settings, and the source of each."
    )
    parser.add_argument("component", choices=(*COMPONENTS, CHECK), help=_CHECKED)
    parser.add_argument(
        "flags",
        nargs=argparse.REMAINDER,
        help="Flags of the component, as the component itself takes them.",
    )
    parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.component == CHECK:
        return _check_config(arguments.flags, console)
    command = launching.command(
        launching.module_of(arguments.component), "--print-config", *arguments.flags
    )
    return subprocess.run(command, check=False).returncode


def _check_config(given: Sequence[str], console: Console) -> int:
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


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"
