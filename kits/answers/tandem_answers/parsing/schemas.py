"""Which types the JSON Schema of a tool's arguments allows. Clients write schemas: a walk through
one is bounded, whatever refers to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

MOST_SCHEMAS = 256
"""Schemas that are read for the types of one value: those it has by reference or as alternatives
too. Where there are more, nothing is known of the value."""

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def types_of_property(schema: Mapping[str, object], key: str) -> frozenset[str]:
    """The types that the schema of an object allows for one of its properties; empty: any, or more
    than `MOST_SCHEMAS` schemas would have to be read."""
    owners = list(alternatives(schema, schema))
    declared = [each for owner in owners for each in _property(owner, key)]
    said = [each for one in declared for each in alternatives(schema, one)]
    if len(owners) + len(said) > MOST_SCHEMAS:
        return frozenset()
    return frozenset[str]().union(*map(_types_said, said))


def types_allowed(root: Mapping[str, object], schema: object) -> frozenset[str]:
    """The types that a schema allows, which stands in `root`; empty as in `types_of_property`."""
    said = list(alternatives(root, schema))
    if len(said) > MOST_SCHEMAS:
        return frozenset()
    return frozenset[str]().union(*map(_types_said, said))


def types_of(value: object) -> frozenset[str]:
    """The types of JSON Schema that a value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def alternatives(root: Mapping[str, object], schema: object) -> Iterator[Mapping[str, object]]:
    """The schema, which stands in `root`, and all that it refers to or chooses from: each once, and
    at most one more than `MOST_SCHEMAS`."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting and len(seen) <= MOST_SCHEMAS:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(reference := one.get("$ref"), str):
            waiting.append(_referred(root, reference))
        for word in _ALTERNATIVES:
            options = one.get(word)
            waiting += options[: MOST_SCHEMAS + 1] if isinstance(options, list) else []


def _referred(root: Mapping[str, object], reference: str) -> object:
    """What a reference within the schema means (RFC 6901); None: nothing here."""
    if not reference.startswith("#"):
        return None
    found: object = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and len(step) < 10:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _property(schema: Mapping[str, object], key: str) -> Iterator[object]:
    """The schema of one property, if the `properties` of an object schema have it."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        yield properties[key]
    else:
        yield schema.get("additionalProperties")


def _types_said(schema: Mapping[str, object]) -> frozenset[str]:
    """The types that a schema names itself, or that its values have."""
    types = schema.get("type")
    listed = types if isinstance(types, list) else [types]
    values = schema.get("enum")
    chosen = [*values] if isinstance(values, list) else []
    chosen += [schema["const"]] if "const" in schema else []
    chosen += [None] if schema.get("nullable") is True and listed != [None] else []
    said = frozenset(each for each in listed if isinstance(each, str))
    return said.union(*map(types_of, chosen))
