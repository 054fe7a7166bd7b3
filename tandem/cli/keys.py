"""`tandem keys new NAME`: makes a key, and the line that lets it in."""

from __future__ import annotations

import argparse
import sys

import msgspec

from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.keys.file import parse
from tandem.keys.ring import digest_of, new_key

_LIMITS = ("requests_per_minute", "tokens_per_minute", "open_requests", "max_n")
_LISTS = ("models", "logits_processors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    new = adding(parser)
    new("action", choices=("new",), help="Print a new key, and its line for the key file.")
    new("name", help="Name of the key in metrics, audit logs and other components.")
    for name in _LIMITS:
        new(f"{_flag(name)} N", int, help="Limit of the key's requests. [no limit]")
    new("--max-priority N", int, default=0, help="[%(default)s]")
    new("--weight N", int, default=1, help="[%(default)s]")
    for name in _LISTS:
        new(f"{_flag(name)} NAME", nargs="*", help="Names that requests of the key may use. [all]")


def keys(arguments: argparse.Namespace, console: Console) -> int:
    """The key goes to stderr and the line to stdout, so that `>>` appends it to the file."""
    key = new_key()
    given = {
        name: getattr(arguments, name)
        for name in (*_LIMITS, *_LISTS, "max_priority", "weight")
        if getattr(arguments, name) is not None
    }
    grant = {"name": arguments.name, "sha256": digest_of(key.encode()), **given}
    defaults = {"max_priority": 0, "weight": 1}
    said = {name: value for name, value in grant.items() if defaults.get(name) != value}
    line = msgspec.json.encode(said)
    parse(line, f"the key {arguments.name!r}")
    if console.result({"key": key, "line": said}):
        return 0
    sys.stderr.write(f"The key, which is shown only now:\n{key}\n")
    sys.stderr.write("The key's line for the key file (the setting api_keys_file):\n")
    sys.stderr.flush()
    sys.stdout.write(line.decode() + "\n")
    return 0


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


COMMAND = Command(
    add_arguments, keys, example="tandem keys new team-a --requests-per-minute 600 >> keys.jsonl"
)
