"""How models write their calls of tools, as data: what stands around a name and its arguments.

Space is free in all of these texts: where one has a space or a new line, the answer may have any,
or none. Only in the first line of a `begin` it is as it stands, for that is what is looked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

from tandem_frontend.openai.answer_parsers import Envelope


class _NoJson:
    """A way to write calls whose arguments are no JSON."""

    def envelope(self, name: str) -> None:
        """None: a grammar of JSON cannot write these calls."""


@dataclass(frozen=True)
class Header:
    """The markers before content, with a word or two between them."""

    begin: str
    end: str
    between: str
    """The marker that may stand between the two."""


@dataclass(frozen=True)
class Objects:
    """Calls as JSON objects that name the tool and its arguments: one object, or an array."""

    begin: str = ""
    """Empty: calls are recognised only where nothing but space has come before."""
    end: str = ""
    array: bool = False
    """Whether the model writes an array, also of one call. After a marker both are read."""
    first: bool = False
    """`begin` is ordinary text: calls are recognised only behind nothing but space."""
    separator: str = ""
    """Between calls that are no array."""
    arguments: str = "arguments"
    """The key of the arguments, as the model writes it; read are all that models are known for."""
    name: str = "name"
    id: str = "id"

    def envelope(self, name: str) -> Envelope:
        begin = f'{{"{self.name}": {json.dumps(name)}, "{self.arguments}": '
        if self.array:
            return Envelope(begin, "}", ", ", self.begin + "[", "]" + self.end)
        return Envelope(self.begin + begin, "}" + self.end, self.separator or "\n")


@dataclass(frozen=True)
class Named:
    """Calls as the tool's name, and then the JSON object of its arguments."""

    begin: str = ""
    between: str = ""
    """Between the name and the arguments."""
    end: str = ""
    usual: str = ""
    """What models usually write before `between`."""
    skipped: tuple[str, ...] = ()
    """What may stand before `between`: words of the usual, and others."""
    name: str = "{name}"
    """How the tool's name is written."""
    pattern: str = "(.+)"
    """A regular expression for what is written as the name: its group is the tool's."""
    ids: bool = False
    """Whether what is written as the name is also the id of the call."""
    id: str = ""
    """The marker of an id between the name and the arguments."""
    section: tuple[str, str] = ("", "")
    """What stands around all calls."""
    separator: str = ""

    def envelope(self, name: str) -> Envelope:
        written = self.name.format(name=name)
        begin = self.begin + written + self.usual + self.between
        return Envelope(begin, self.end, self.separator, *self.section)


@dataclass(frozen=True)
class Xml(_NoJson):
    """Calls as elements: the tool's name, then a key and a value for each argument."""

    begin: str
    name_end: str
    key: str
    key_end: str
    value: str
    """Between a key and its value."""
    value_end: str
    end: str
    padded: bool = False
    """Whether a new line on each side of a value belongs to the markers."""
    typed: str = ""
    """Between a key and whether its value is a string, "true" or "false"."""
    inside: str = ""
    """The marker behind which alone calls are recognised; empty: they are anywhere."""


@dataclass(frozen=True)
class Pythonic(_NoJson):
    """Calls as a list of Python's, with keyword arguments that are literals."""

    begin: str = "["
    inside: str = ""
    """The marker behind which alone calls are recognised; empty: they are anywhere."""


@dataclass(frozen=True)
class Unquoted(_NoJson):
    """Calls as a name and an object with bare keys, and quotes of the family's own."""

    begin: str
    end: str
    quote: str


@dataclass(frozen=True)
class Nested(_NoJson):
    """A section of calls, whose arguments are elements with the keys' names: what an object or a
    list has are elements inside of its own. `mark` comes before each tag."""

    mark: str
    begin: str
    end: str
    item: str = "item"
    """The element of what a list has."""


@dataclass(frozen=True)
class Attributed(_NoJson):
    """Calls as elements whose attributes say the tool, the keys, and the types of the values."""

    begin: str = "<|open|>call"
    opening: str = "<|open|>"
    closing: str = "<|close|>"
    tag_end: str = "<|sep|>"


Format: TypeAlias = Objects | Named | Xml | Pythonic | Unquoted | Nested | Attributed


def mark_of(format_: Format) -> str:
    """What is looked for in a text to find calls of the format."""
    return format_.begin.split("\n")[0].strip()
