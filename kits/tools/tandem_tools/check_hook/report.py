"""The findings about a hook, one for each check, for a reader or as JSON for a program."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from tandem.cli.console import Console

NAME_WIDTH = 14
LINE_WIDTH = 96
Status = Literal["ok", "warning", "failed"]


@dataclass(slots=True)
class Check:
    """The result of checking one property of a hook."""

    name: str
    summary: str = ""
    problems: list[str] = field(default_factory=list)
    """The hook breaks the contract, or harms the worker it runs in."""
    warnings: list[str] = field(default_factory=list)
    """Not wrong by itself; its author should know."""

    @property
    def status(self) -> Status:
        if self.problems:
            return "failed"
        return "warning" if self.warnings else "ok"


def show(check: Check, console: Console) -> None:
    """Print one check as soon as the check is done."""
    mark = {
        "ok": console.good("ok"),
        "warning": console.bold("??"),
        "failed": console.bad("!!"),
    }[check.status]
    texts = [check.summary] if check.summary else []
    first, *more = _lines(texts + check.problems + check.warnings)
    console.line(f"{mark}  {console.bold(check.name.ljust(NAME_WIDTH))}  {first}".rstrip())
    for line in more:
        console.line(f"{' ' * (NAME_WIDTH + 6)}{line}")


def conclude(path: str, checks: Sequence[Check], console: Console) -> None:
    """Print the last line, which says what all checks came to."""
    failed = sum(check.status == "failed" for check in checks)
    warned = sum(check.status == "warning" for check in checks)
    console.line()
    if failed:
        console.failed(console.bold(f"{path}: {counted(failed, 'finding')} to fix"))
    elif warned:
        console.done(f"{console.bold(path)} keeps to the contract; {counted(warned, 'warning')}")
    else:
        console.done(f"{console.bold(path)} keeps to the contract")


def told(path: str, checks: Sequence[Check]) -> dict[str, object]:
    """The findings for a program."""
    return {
        "hook": path,
        "ok": not any(check.problems for check in checks),
        "checks": [
            {"name": check.name, "status": check.status, **asdict(check)} for check in checks
        ],
    }


def counted(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _lines(texts: Sequence[str]) -> list[str]:
    width = LINE_WIDTH - NAME_WIDTH - 6
    lines = [
        part
        for text in texts
        for line in text.splitlines()
        for part in textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
    ]
    return lines or [""]
