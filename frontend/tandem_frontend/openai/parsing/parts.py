"""What a model's answer is made of, once its text has been parsed."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Content(NamedTuple):
    """More of the answer itself."""

    text: str


class Reasoning(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class CallStart(NamedTuple):
    """The model calls a tool."""

    call: int
    """From 0, in its choice."""
    name: str
    id: str = ""
    """What the model itself calls the call; empty: its family gives calls no ids."""


class CallArguments(NamedTuple):
    """More of the arguments of a call: all of a call's, joined, are one JSON object."""

    call: int
    text: str


Part: TypeAlias = Content | Reasoning | CallStart | CallArguments
