"""JSON schemas of settings, made from the classes that read them: for a stack's file, whose editors
check it as it is written, and for the chart's values (scripts/chart_values.py).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from tandem import ranges
from tandem.engine import factory
from tandem.engine.base import EngineKit
from tandem.hooks import settings as hook_settings
from tandem.hooks.classifiers.settings import ClassifierSettings
from tandem.logits.settings import Clients
from tandem.stack_file import OWNED, SECTIONS, StackFile
from tandem.usercode.loader import entry_points, load_entry_point, load_object
from tandem.worker.config import WorkerConfig

_CLASSES: Final = {
    "frontend": "tandem_frontend.config:FrontendConfig",
    "router": "tandem_router.config:RouterConfig",
}
"""The other sections have WorkerConfig. Classes of components, which lie above this package."""
_WRITTEN_AS: Final = {"moderation_classifiers": "classifiers"}
"""Settings that are written as a section of a worker's."""
_BOUNDS: Final = {
    "above": "exclusiveMinimum",
    "at_least": "minimum",
    "at_most": "maximum",
    "below": "exclusiveMaximum",
}
TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


def of_stack() -> dict[str, Any]:
    """The schema of a stack's file: no key is taken that the file does not have."""
    made = msgspec.json.schema(StackFile)
    root: dict[str, Any] = _inlined(made, made["$defs"])
    sections = root["properties"]
    for name, setting in (
        ("hooks", "hooks"),
        ("classifiers", "classifiers"),
        ("logitsProcessors", "logits_processors"),
    ):
        sections[name] |= of_section(setting)
    engine = _closed(of_settings("engine"), of_engine=True)
    sections["engine"]["properties"]["options"] |= engine
    for name in SECTIONS.values():
        inside = sections[name]["properties"]
        inside["config"] |= _closed(of_settings(name))
        if "engineOptions" in inside:
            inside["engineOptions"] |= engine
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A stack of Tandem, as `tandem up --config` serves it",
        **root,
    }


def _closed(properties: dict[str, Any], *, of_engine: bool = False) -> dict[str, Any]:
    """An object with these properties alone; of engines with others too where not all engines are
    installed.
    """
    known = typing.get_args(factory.EngineName)
    whole = not of_engine or entry_points(factory.GROUP).names == set(known)
    return {"properties": properties, "additionalProperties": not whole}


def of_settings(section: str) -> dict[str, Any]:
    """Name to schema of every setting that a section's `config` takes, or of every option of the
    installed engines where `section` is "engine".
    """
    properties: dict[str, Any] = {}
    for prefix, model in _classes(section):
        hints = typing.get_type_hints(model)
        for field in dataclasses.fields(model):
            if field.name in OWNED[section]:
                continue
            name = prefix + field.name
            found = _of_type(hints[field.name])
            bounds = ranges.of(field)._asdict()
            found |= {_BOUNDS[name]: each for name, each in bounds.items() if each is not None}
            if written_as := _WRITTEN_AS.get(field.name):
                found |= of_section(written_as)
            if text := field.metadata.get("help"):
                found["description"] = " ".join(text.split())
            properties[name] = _either(properties[name], found) if name in properties else found
    return dict(sorted(properties.items()))


def _either(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an option of two engines: takes what either does."""
    found = {**other, **one}
    if one["type"] != other["type"]:
        found["type"] = "number"  # one engine takes whole numbers only
    for name in _BOUNDS.values():
        if name in one and name in other:
            loosest = min if name.endswith("inimum") else max
            found[name] = loosest(one[name], other[name])
        else:
            found.pop(name, None)
    return found


def _classes(section: str) -> Iterator[tuple[str, type[Any]]]:
    """The classes of a section's settings, each behind what begins the names of its settings."""
    if section == "engine":
        for name in sorted(entry_points(factory.GROUP).names):
            kit: EngineKit = load_entry_point(factory.GROUP, name)
            yield from kit.options.items()
    else:
        where = _CLASSES.get(section)
        yield "", load_object(where) if where else WorkerConfig


def of_section(name: str) -> dict[str, Any]:
    """What a worker reads in a section of its settings: the structs that read it, as a schema."""
    if name == "logits_processors":
        one = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "use": {"type": "string", "minLength": 1},
                "args": {"type": "object"},
                "clients": {"enum": list(typing.get_args(Clients))},
                "always": {"type": "boolean"},
            },
        }
        return {"additionalProperties": {"anyOf": [{"type": "string", "minLength": 1}, one]}}
    struct, entries = {
        "hooks": (hook_settings.Section, "chain"),
        "classifiers": (ClassifierSettings, "entries"),
    }[name]
    made = msgspec.json.schema(struct)
    found: dict[str, Any] = _inlined(made, made["$defs"])
    offered = "|".join(sorted(entry_points(f"tandem.{name}").names))
    path = {"type": "string", "pattern": rf"^({offered})$|^\S+[.:]\S+$"}
    (entry,) = (
        each
        for each in (
            found["properties"][entries]["items"],
            *found["properties"][entries]["items"].get("anyOf", ()),
        )
        if "properties" in each
    )
    entry["properties"]["path"] = path
    found["properties"][entries]["items"] = {"anyOf": [path, entry]}
    return {key: found[key] for key in ("additionalProperties", "properties")}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Without references, titles and defaults."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if reference := schema.get("$ref"):
        return _inlined(definitions[reference.rpartition("/")[2]], definitions)
    left_out = ("$defs", "title", "default", "description")
    return {
        key: {name: _inlined(each, definitions) for name, each in value.items()}
        if key == "properties"
        else _inlined(value, definitions)
        for key, value in schema.items()
        if key not in left_out
    }


def _of_type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is types.UnionType:
        return _of_type(arguments[0])
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0])}
    return {"type": TYPES.get(origin or hint, "string")}
