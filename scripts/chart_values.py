"""What helm/tandem/values.yaml says of each value: its path, default, description and schema.

A comment that begins with `# --` describes the key below it; a mapping that has one is free-form. A
line `# @schema {…}` is laid over the JSON schema that the default and the name imply;
`{"settings": "router"}` in it stands for the settings of that component that the chart leaves to
its user, `{"section": "hooks"}` for what a worker reads in that section of its settings. Every
value is required, so that a null, by which Helm takes a default away, is refused by name; but one
whose schema takes null may be taken away.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tandem.cli import schema
from tandem.cli.schema import TYPES

_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_OBJECT = {"type": "object"}
_NAMED = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
}
_QUANTITY = {
    "type": ["string", "number", "null"],
    "minimum": 0,
    "pattern": r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$",
}
_QUANTITIES = {"type": "object", "additionalProperties": _QUANTITY}
_RESOURCES = {"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": {"type": "array"}}
_WORD = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
"""A label's value, and its name behind the prefix."""
_LABELS = {
    "propertyNames": {"pattern": f"^([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD}$"},
    "additionalProperties": {"type": "string", "pattern": f"^({_WORD})?$"},
}
_CIDR = {"type": "string", "pattern": r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"}
_SHARE = {"type": ["integer", "string"], "minimum": 0, "pattern": r"^([0-9]{1,3}%)?$"}
"""How many pods, or what share of them."""
_TIMES = "initialDelaySeconds periodSeconds timeoutSeconds successThreshold failureThreshold"
_PROBE = {
    "additionalProperties": False,
    "properties": {
        name: {"type": "integer", "minimum": 0}
        for name in (*_TIMES.split(), "terminationGracePeriodSeconds")
    },
}
"""What is laid over one: what it asks, and at which port, is the chart's."""
_RULES: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"additionalProperties": {"type": "string"}},
        "annotations commonAnnotations files podAnnotations",
    ),
    (_LABELS, "additionalLabels commonLabels labels nodeSelector podLabels"),
    (
        {"items": {"type": "string"}},
        "accessModes disabled dnsNames extraArgs hostnames hosts",
    ),
    ({"items": _CIDR}, "apiCIDRs loadBalancerSourceRanges"),
    (_SHARE, "maxUnavailable minAvailable"),
    (_PROBE, "startup liveness readiness"),
    ({"items": _PORT}, "apiPorts dnsPorts"),
    (
        {"items": _OBJECT},
        "allowFrom extra extraEnvFrom extraGroups extraObjects metricRelabelings metrics"
        " hostAliases metricsFrom relabelings routerFrom tls tolerations topologySpreadConstraints"
        " triggers",
    ),
    (
        {"items": _NAMED},
        "claims extraContainers extraEnv extraInitContainers extraVolumeMounts extraVolumes"
        " imagePullSecrets parentRefs",
    ),
    (_PORT, "port"),
    ({"additionalProperties": False, "properties": _RESOURCES}, "resources"),
    ({"pattern": r"^([0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?)?$"}, "size sizeLimit"),
)
_BY_NAME = {name: rule for rule, names in _RULES for name in names.split()}
"""The rule for every value with that name."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart, or a section of them."""

    path: tuple[str, ...]
    default: Any
    description: str
    schema: dict[str, Any]
    section: bool
    """The value is a section; its values follow."""


def read(path: Path) -> Iterator[Value]:
    """Every value and section of the file, in its order."""
    text = path.read_text(encoding="utf-8")
    # libyaml reads it five times as fast as Python.
    tree = yaml.compose(text, Loader=yaml.CSafeLoader)
    content = yaml.load(text, Loader=yaml.CSafeLoader)
    yield from _mapping(tree, content, text.splitlines(), ())


def _mapping(node: Any, content: Any, lines: list[str], above: tuple[str, ...]) -> Iterator[Value]:
    for key, child in node.value:
        description, schema = _comment(lines, key.start_mark.line)
        default = content[key.value]
        section = isinstance(default, dict) and bool(default) and not description
        path = (*above, key.value)
        yield Value(path, default, description, schema, section)
        if section:
            yield from _mapping(child, default, lines, path)


def _comment(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    start = line
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    words: list[str] = []
    schema: dict[str, Any] = {}
    for text in (each.strip().removeprefix("#").strip() for each in lines[start:line]):
        if text.startswith("@schema"):
            schema = json.loads(text.removeprefix("@schema"))
        elif text.startswith("--"):
            words = [text.removeprefix("--").strip()]
        elif words:
            words.append(text)
    return " ".join(words), schema


def json_schema(values: list[Value]) -> dict[str, Any]:
    """The schema of the whole file: no key is taken that it does not have."""
    root = _section()
    for value in values:
        inside = root
        for key in value.path[:-1]:
            inside = inside["properties"][key]
        found = _schema(value)
        inside["properties"][value.path[-1]] = found
        if "null" not in found["type"]:
            inside["required"].append(value.path[-1])
    # What Helm itself puts into the values of a chart that is another one's dependency.
    root["properties"]["global"]["additionalProperties"] = True
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "tandem", **root}


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": [], "properties": {}}


def _schema(value: Value) -> dict[str, Any]:
    if value.section:
        return _section()
    kind: dict[str, Any] = {"type": TYPES[type(value.default)]}
    kind |= _BY_NAME.get(value.path[-1], {})
    annotated = dict(value.schema)
    if component := annotated.pop("settings", None):
        kind |= {"additionalProperties": False, "properties": schema.of_settings(component)}
    if name := annotated.pop("section", None):
        kind |= schema.of_section(name)
    described = {"description": value.description} if value.description else {}
    found = {**kind, **annotated, **described}
    if found["type"] == "array" and "items" not in found:
        raise ValueError(f"{'.'.join(value.path)}: what are the items of this list?")
    return found
