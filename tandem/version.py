"""Which Tandem is installed, and the option `--version` of every program."""

from __future__ import annotations

import argparse
import sys

DISTRIBUTION = "tandem-serving"


def tandem_version() -> str:
    """The version of the installed distribution, or "unknown"."""
    from importlib import metadata  # takes longer to import than most programs do without

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a program's parser `--version`, which prints the version and exits."""
    parser.add_argument(
        "--version", action=_Show, nargs=0, help="Show the version of this program, and exit."
    )


class _Show(argparse.Action):
    """Looks the version up once it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{parser.prog} {tandem_version()}\n")
        parser.exit()
