"""What a settings file says, and at which line: YAML in which nothing is said twice.

A message about a setting is told where the setting stands, so that whoever wrote the file finds it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from tandem.errors import ConfigError, StartError

Place = tuple[str | int, ...]
"""The way to a value: ("hooks", "chain", 0, "path")."""
E = TypeVar("E", bound=StartError)
T = TypeVar("T")
_MERGE: Final = "tag:yaml.org,2002:merge"
_NAMED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[\w-]+|\[\d+\])*")
"""How messages write a place: hooks.chain[0].path."""
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")


@dataclass(frozen=True)
class SettingsFile:
    """A file that was read; without a path: none is."""

    path: str = ""
    content: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[Place, int] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)
    """The line of each text: the keys, and the values."""

    def located(self, error: E, names: Iterable[str]) -> E:
        """`error`, led by the file and the line of what the message is about, where that can be
        told: the place with which the message begins, a text of the file that the message quotes,
        or else one of the settings `names`.
        """
        message = str(error)
        line = self._line(message, frozenset(names))
        return type(error)(f"{self.path}, line {line}: {message}") if line else error

    def _line(self, message: str, names: frozenset[str]) -> int:
        named = [
            (found.start(), place)
            for found in _NAMED.finditer(message)
            if (place := _place(found[0]))[0] in names and place[:1] in self.lines
        ]
        quoted = [
            line
            for text, line in self.texts.items()
            if repr(text) in message or ("/" in text and text in message)
        ]
        if not named:
            return min(quoted, default=0)
        begin, place = named[0]
        unknown = _UNKNOWN.search(message)
        line = self._nearest((*place, unknown[1]) if unknown else place)
        if begin:
            return min(quoted, default=line)
        last = max(each for inner, each in self.lines.items() if inner[0] == place[0])
        inside = [each for each in quoted if line < each <= last]
        return min(inside, default=line) if len(place) == 1 else line

    def _nearest(self, place: Place) -> int:
        """The line of a place, or of the nearest one around it."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]


def read(path: str) -> SettingsFile:
    """Raises ConfigError, with the line, where the file cannot be read, or says something twice."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from error
    content, lines, texts = _parse(text, path)
    if content is None:
        return SettingsFile(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not a {type(content).__name__}")
    return SettingsFile(path, content, lines, texts)


def read_value(text: str, name: str) -> Any:
    """A mapping or list that a flag or variable holds, as JSON or as YAML writes it in a line.
    `name`: what holds the text. Raises ConfigError.
    """
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, name))
    except ValueError:
        return _parse(text, name)[0]
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deep") from error


def read_section(model: type[T], name: str, given: object) -> T:
    """A mapping of a settings file, such as `hooks`, as the msgspec Struct that describes it; with
    an empty name the whole file.

    Raises ConfigError, naming the field and what it takes; never the value, which may be secret.
    """
    try:
        return msgspec.convert(given, model)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        unknown = re.search("unknown field `(.+)`", what)
        hint = (
            nearest(unknown[1], _field_names(msgspec.inspect.type_info(model))) if unknown else ""
        )
        place = f"{name}{path.removesuffix('`')}".lstrip(".")
        raise ConfigError(f"{place}: {what}{hint}" if place else f"{what}{hint}") from None


def _field_names(kind: Any) -> Iterator[str]:
    """All names of fields in what a Struct describes, at every depth."""
    if isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            yield each.encode_name
            yield from _field_names(each.type)
    for each in getattr(kind, "types", ()):
        yield from _field_names(each)
    if (item := getattr(kind, "item_type", None)) is not None:
        yield from _field_names(item)


def nearest(given: str, known: Iterable[str], *, cutoff: float = 0.7) -> str:
    """The end of a message about a name that is not known: which one may be meant."""
    others = [each for each in known if each != given]  # known elsewhere in the file
    close = difflib.get_close_matches(given, others, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"{name} says {twice!r} twice")
    return content


def _parse(text: str, name: str) -> tuple[Any, dict[Place, int], dict[str, int]]:
    """The content, and the lines of its places and texts."""
    lines: dict[Place, int] = {}
    texts: dict[str, int] = {}
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, lines, texts
        _walk(node, (), name, lines, texts, set())
        return loader.construct_document(node), lines, texts
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read settings from {name}: {error}") from error
    finally:
        loader.dispose()


def _walk(
    node: yaml.Node,
    place: Place,
    name: str,
    lines: dict[Place, int],
    texts: dict[str, int],
    seen: set[int],
) -> None:
    """Note the lines of all that is in a node. What an alias repeats is noted where it stands
    first. Raises ConfigError for a key that is there twice.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        texts.setdefault(node.value, node.start_mark.line + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*place, index] = item.start_mark.line + 1
            _walk(item, (*place, index), name, lines, texts, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line, inner = key.start_mark.line + 1, (*place, key.value)
            if inner in lines:
                raise ConfigError(
                    f"{name}, line {line}: {_written(inner)} is there already, at line"
                    f" {lines[inner]}"
                )
            lines[inner] = line
            texts.setdefault(key.value, line)
            _walk(value, inner, name, lines, texts, seen)


def _place(written: str) -> Place:
    parts = re.findall(r"\[(\d+)\]|([\w-]+)", written)
    return tuple(int(index) if index else name for index, name in parts)


def _written(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")
