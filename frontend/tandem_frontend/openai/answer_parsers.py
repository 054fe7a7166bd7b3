"""What parsers of answers offer the frontend. A package offers them as an entry point of the group
`tandem.answer_parsers`, which names a ModelFamilies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from tandem.errors import ConfigError
from tandem.usercode.loader import entry_points, load_entry_point

GROUP = "tandem.answer_parsers"


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
"""A piece of an answer, as a parser gives it out."""
Tools: TypeAlias = Mapping[str, Mapping[str, object]]
"""The JSON schema of the parameters of each tool that may be called, by the tool's name."""


class Thinking(NamedTuple):
    """The markers around what a model thinks."""

    begin: str
    end: str


class Envelope(NamedTuple):
    """What stands around the calls of an answer, where their arguments are JSON.

    The answer is `section_begin`, then for each call `begin`, the JSON object of its arguments and
    `end`, with `separator` between two calls, and then `section_end`.
    """

    begin: str
    end: str
    separator: str = "\n"
    section_begin: str = ""
    section_end: str = ""


class AnswerParser(Protocol):
    """Takes one answer apart as its text comes. No text raises."""

    in_reasoning: bool
    """Whether what comes next is reasoning, unless it ends."""
    broken: int
    """Calls that failed after text had proved to be a call."""
    cut: frozenset[int]
    """Calls whose arguments have begun and are not whole: nobody can make them."""

    @property
    def calls(self) -> int:
        """How many calls have begun so far."""

    @property
    def undecided(self) -> bool:
        """Whether what has come may be reasoning, or may not: it is held."""

    def push(self, text: str) -> list[Part]:
        """What `text` adds to the answer."""

    def flush(self) -> list[Part]:
        """What was held back, at the end of the answer: nothing can be pushed after it."""


class ModelFamily(Protocol):
    """How models of one family write reasoning and calls; None or empty: not known."""

    @property
    def name(self) -> str: ...

    @property
    def thinking(self) -> Thinking | None: ...

    @property
    def calls(self) -> Sequence[object]:
        """The formats of calls that are read."""

    @property
    def silent(self) -> tuple[str, ...]:
        """Markers around content, which are no part of it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All that may be a special token of the tokenizer: the parser has to see them as text."""

    def envelope(self, name: str) -> Envelope | None:
        """What stands around calls of the tool `name`; None: unknown, or no JSON."""

    def forced(self) -> ModelFamily:
        """The family where a grammar makes the model write calls as plain JSON, after its reasoning
        if it has any: an array of objects with "name" and "parameters"."""

    def with_thinking(self, thinking: Thinking | None) -> ModelFamily:
        """The family of a model that thinks between these markers; None: it does not think."""

    def parser(
        self,
        *,
        reasoning: bool,
        opened: bool,
        tools: Tools | None,
        most_held: int,
        unmarked: bool = False,
        whole: bool = False,
    ) -> AnswerParser:
        """A parser of one answer, whose parts are the same whatever the pieces of its text are.

        Args:
            reasoning: Whether reasoning is told from content. Otherwise it stays content, with its
                markers.
            opened: Whether the prompt has begun the reasoning already.
            tools: None: no call is looked for.
            most_held: Characters that may be held back until it is known what they are.
            unmarked: Whether the model may reason without a marker at the beginning.
            whole: Whether nobody sees the answer before its end.
        """


@dataclass(slots=True, frozen=True)
class ModelFamilies:
    """What an entry point names: the families of models that a package knows."""

    names: Collection[str]
    named: Callable[[str], ModelFamily]
    """The family of a name: one of `names`, or a variant of one. Raises KeyError."""
    detect: Callable[[str | None, Sequence[str], Collection[str]], ModelFamily | None]
    """By chat template, architectures and added tokens: a model's family; None: unclear."""


@functools.cache
def offered() -> Sequence[ModelFamilies]:
    """The families of all installed packages, in the order of their entry points' names. Raises
    LoadError, and ConfigError where no package offers any."""
    names = sorted(entry_points(GROUP).names)
    if not names:
        raise ConfigError(
            "No installed package knows how models write reasoning and calls: pip install"
            " tandem-answers, or set model_family to none"
        )
    return [load_entry_point(GROUP, name) for name in names]


def names() -> list[str]:
    """The families that a setting may name."""
    return sorted({name for families in offered() for name in families.names})


def named(name: str) -> ModelFamily:
    """The family that a setting or a request's parsing names. Raises KeyError."""
    for families in offered():
        try:
            return families.named(name)
        except KeyError:
            continue
    raise KeyError(name)


@functools.lru_cache(maxsize=64)
def written(name: str, thinking: Thinking | None) -> ModelFamily:
    """How a model of the named family writes that thinks between these markers, or not at all."""
    return named(name).with_thinking(thinking)


def detect(
    chat_template: str | None, architectures: Sequence[str], tokens: Collection[str]
) -> ModelFamily | None:
    """The family of a model by its files; None: it cannot be told."""
    found = (families.detect(chat_template, architectures, tokens) for families in offered())
    return next((each for each in found if each is not None), None)
