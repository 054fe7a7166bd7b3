"""Cases as text: commands to a state machine, and all that the machine answered.

A folder `x_traces` holds files of cases. A case begins with `== `, its title, a sentence, and in
brackets the promises that it holds; those of all cases stand below the file's own sentence, as
`promises: S5-217`. Each further line is a command, `command -> answer`, or several without an
answer, joined by `;`. A long answer stands below its command, indented. `#` begins a comment. Each
case has a machine of its own, which its file's `setup: command; command` comes before. The folder's
conftest.py says which machine that is: its `told` answers the words of a command.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

_PROMISE = re.compile(r"\bS\d-\d{3}\b")


class Told(Protocol):
    """A machine that is told commands."""

    def told(self, words: list[str]) -> str:
        """What is answered to the words of one command."""


class Said(NamedTuple):
    """One part of an answer, as in `end 1 (cancelled)`."""

    verb: str
    thing: str
    note: str


def said(verb: str, thing: object = "", *notes: object) -> list[Said]:
    return [Said(verb, str(thing), ", ".join(str(each) for each in notes if each))]


def joined(told: Iterable[Said]) -> str:
    """One line: parts of one kind that follow each other share their verb and their note."""
    found = []
    for (verb, note), those in groupby(told, lambda each: (each.verb, each.note)):
        things = ", ".join(each.thing for each in those)
        found.append(f"{verb} {things}".strip() + (f" ({note})" if note else ""))
    return "; ".join(found)


@dataclass
class Case:
    """One case of a file: its lines, the title's included."""

    title: str
    line: int
    promises: list[str]
    setup: list[str]
    """Commands of its file, whose answers are not shown."""
    lines: list[str] = field(default_factory=list)

    def played(self, trace: Told) -> list[str]:
        """The lines with what the machine answers now."""
        found = []
        for command in self.setup:
            trace.told(command.split())
        for line in self.lines:
            if line.startswith("  "):
                continue
            if not line or line.startswith(("#", "== ")):
                found.append(line)
                continue
            told, _, comment = line.partition("  # ")
            commands = told.partition(" -> ")[0].strip()
            try:
                answers = [trace.told(each.split()) for each in commands.split(";")]
            except Exception as error:
                error.add_note(f"{self.title}: {commands}")
                raise
            found += _written(commands, [each for each in answers if each], comment)
        return found


def read(path: Path) -> tuple[list[str], list[Case]]:
    """The lines above the first case, and the cases."""
    head: list[str] = []
    cases: list[Case] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("== "):
            of_all = [each for above in head for each in _PROMISE.findall(above)]
            title = line[3:].partition(" (S")[0]
            setup = [each for above in head for each in _setup(above)]
            cases.append(Case(title, number, of_all + _PROMISE.findall(line), setup))
        (cases[-1].lines if cases else head).append(line)
    return head, cases


def _setup(line: str) -> list[str]:
    name, _, commands = line.partition(": ")
    return commands.split(";") if name == "setup" else []


def write(path: Path, machine: Callable[[], Told]) -> None:
    """Write the file anew, with what the machine answers now."""
    head, cases = read(path)
    lines = [*head, *(line for case in cases for line in case.played(machine()))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _written(commands: str, answers: list[str], comment: str) -> list[str]:
    """One line where that is not too long; each of several answers has a line of its own."""
    note = f"  # {comment}" * bool(comment)
    if not answers:
        return [commands + note]
    if len(line := f"{commands} -> {answers[0]}{note}") <= 100 and len(answers) == 1:
        return [line]
    indents = {"initial_indent": "  ", "subsequent_indent": "    "}
    wrapped = [
        textwrap.wrap(each, 100, break_long_words=False, break_on_hyphens=False, **indents)
        for each in answers
    ]
    return [commands + note, *(line for lines in wrapped for line in lines)]


def parsed(words: list[str], flags: set[str]) -> tuple[list[str], dict[str, str | bool]]:
    """The bare words of a command, and those of the form `name=value`; one of `flags` is true."""
    bare: list[str] = []
    named: dict[str, str | bool] = {}
    for name, equals, text in (word.partition("=") for word in words):
        if equals or name in flags:
            named[name] = text if equals else True
        else:
            bare.append(name)
    return bare, named


class TraceFile(pytest.File):
    """`--write-traces` writes the file anew before the cases are read."""

    def __init__(self, *, machine: Callable[[], Told], **given: Any) -> None:
        super().__init__(**given)
        self.machine = machine

    def collect(self) -> Iterator[pytest.Item]:
        if self.config.getoption("write_traces"):
            write(self.path, self.machine)
        for case in read(self.path)[1]:
            yield TraceCase.from_parent(self, name=case.title, case=case, machine=self.machine)


class TraceCase(pytest.Item):
    """A case, which fails where its machine answers otherwise than its file says."""

    def __init__(self, *, case: Case, machine: Callable[[], Told], **given: Any) -> None:
        super().__init__(**given)
        self.case, self.machine = case, machine
        if case.promises:
            self.add_marker(pytest.mark.promise(*case.promises))

    def runtest(self) -> None:
        changed = difflib.ndiff(self.case.lines, self.case.played(self.machine()))
        if found := [each for each in changed if not each.startswith((" ", "?"))]:
            raise OtherwiseError("\n".join(found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if excinfo.errisinstance(OtherwiseError):
            return f"{excinfo.value}\n(-: what the file says, +: what is answered)"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.case.title


class OtherwiseError(AssertionError):
    """The answer is otherwise."""
