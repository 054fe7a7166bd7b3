"""`tandem logs`: what the components of a stack have logged, and log from now on."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tandem.cli import options, run_state
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.log_files import LogFollower, last_lines
from tandem.errors import ConfigError
from tandem.settings_file import nearest

POLL_SECONDS = 0.2
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "component",
        nargs="*",
        help="Components to show, by name, such as decode_worker-0, or by kind, such as router."
        " [all]",
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="Go on with what is logged from now on, until Ctrl-C or the end of the stack.",
    )
    parser.add_argument(
        "-n",
        "--lines",
        type=options.not_negative,
        default=50,
        metavar="N",
        help="Lines of each component to begin with. [%(default)s]",
    )
    options.add_run_dir(parser)


def logs(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError where there are no logs, or none of a component that was named."""
    run_dir: Path = arguments.run_dir
    chosen = _chosen(run_dir, arguments.component)
    try:
        followers = {log: LogFollower(log) for log in chosen}
        _show({log: last_lines(log, arguments.lines) for log in chosen}, chosen, console)
        while arguments.follow:
            ended = _has_ended(run_dir)  # before the last look: nothing is written behind it
            _show({log: each.new_lines() for log, each in followers.items()}, chosen, console)
            if ended:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        raise  # whoever reads this output has gone
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    return 0


def _chosen(run_dir: Path, asked: Sequence[str]) -> list[Path]:
    found = {log.stem: log for log in sorted(run_dir.glob("*.log"))}
    if not found:
        raise ConfigError(
            f"{run_dir.resolve()} holds no logs: logs are in the folder in which a stack was"
            " started, or in the --run-dir that it was given"
        )
    names = {name for each in found for name in (each, each.partition("-")[0])}
    if unknown := sorted(set(asked) - names):
        hint = nearest(unknown[0], names) or f"; there are {', '.join(found)}"
        raise ConfigError(f"there is no component {unknown[0]}{hint}")
    return [
        log
        for name, log in found.items()
        if not asked or name in asked or name.partition("-")[0] in asked
    ]


def _show(lines: dict[Path, Iterable[str]], chosen: Sequence[Path], console: Console) -> None:
    """Lines of several components in the order of their times. A line without a time, as those of
    a traceback, stays behind the line before it.
    """
    timed = []
    for log, written in lines.items():
        at = ""
        for line in written:
            if found := _TIME.search(line[:64]):
                at = found[0]
            timed.append((at, log.stem, line))
    timed.sort(key=lambda entry: entry[0])
    width = max(len(log.stem) for log in chosen)
    for _, name, line in timed:
        if console.result({"component": name, "line": line}):
            continue
        console.line(f"{console.dim(f'{name:{width}} |')} {line}" if len(chosen) > 1 else line)


def _has_ended(run_dir: Path) -> bool:
    """Whether no process of a stack is left that could log. Raises StartError."""
    state = run_state.read(run_dir)
    return state is None or not state.running()


COMMAND = Command(add_arguments, logs, example="tandem logs router decode_worker --follow")
