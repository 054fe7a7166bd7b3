"""What helm/tandem/values.yaml says of each value: its path, default, description and schema.

A comment that begins with `# --` describes the key below it; a mapping that has one is free-form. A
line `# @schema {…}` is laid over the JSON schema that the default and the name imply;
`{"settings": "router"}` in it stands for the settings of that component that the chart leaves to
its user, `{"section": "hooks"}` for what a worker reads in that section of its settings. Every
value is required, so that a null, by which Helm takes a default away, is refused by name; but one
whose schema takes null may be taken away.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from product_packages import offered

from tandem import ranges
from tandem.hooks import settings as hook_settings
from tandem.hooks.classifiers.settings import ClassifierSettings
from tandem.logits.settings import Clients
from tandem.worker.config import WorkerConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig
from tandem_sglang.options import Options as SglangOptions
from tandem_sim.faults import Faults
from tandem_sim.options import SimOptions

_ALL = (
    "listen metrics_listen drain_seconds log_format log_level otlp_endpoint trace_sample_ratio"
    " tls_cert tls_key tls_ca tls_peer_name"
)
_WORKER = (
    "model_path served_model_name advertise_host name engine engine_options hook hooks classifiers"
    " logits_processors lora_adapters deployment_revision ready_when_paired nodes node_rank leader"
    " token_processes"
)
_FRONTEND = (
    "model_path served_model_name models model_names_file router api_keys api_keys_file"
    " key_limit_shares https_cert https_key"
)
_ROUTER = (
    "discovery namespace prefill decode workers prefill_service decode_service worker_service"
    " voucher_key_file"
    " decode_routers routers router_service advertise_host"
    " client_logits_processors allow_reports allow_external_scores"  # the frontends' own
)
_ENGINE = (
    "bootstrap_port data_parallel decode_data_parallel decode_pipeline_parallel"
    " decode_tensor_parallel device kv_port pipeline_parallel tensor_parallel transfer_backend"
)
OWNED: dict[str, frozenset[str]] = {
    "frontend": frozenset(f"{_ALL} {_FRONTEND}".split()),
    "router": frozenset(f"{_ALL} {_ROUTER}".split()),
    "prefill": frozenset(f"{_ALL} {_WORKER}".split()),
    "decode": frozenset(f"{_ALL} {_WORKER}".split()),
    "worker": frozenset(f"{_ALL} {_WORKER}".split()),
    "engine": frozenset(_ENGINE.split()),
}
"""Settings that the chart makes from values of its own: they are not taken in a `config`."""

_SECTIONS = {"moderation_classifiers": "classifiers"}
"""Settings that are written as a section of a worker's."""
CLASSES: dict[str, tuple[type[Any], ...]] = {
    "frontend": (FrontendConfig,),
    "router": (RouterConfig,),
    "prefill": (WorkerConfig,),
    "decode": (WorkerConfig,),
    "worker": (WorkerConfig,),
    "engine": (SglangOptions, SimOptions, Faults),
}
_BOUNDS = {
    "above": "exclusiveMinimum",
    "at_least": "minimum",
    "at_most": "maximum",
    "below": "exclusiveMaximum",
}
_TYPES: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
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
    yield from _mapping(yaml.compose(text), yaml.safe_load(text), text.splitlines(), ())


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
    kind: dict[str, Any] = {"type": _TYPES[type(value.default)]}
    kind |= _BY_NAME.get(value.path[-1], {})
    annotated = dict(value.schema)
    if component := annotated.pop("settings", None):
        kind |= {"additionalProperties": False, "properties": settings_schema(component)}
    if name := annotated.pop("section", None):
        kind |= section_schema(name)
    described = {"description": value.description} if value.description else {}
    found = {**kind, **annotated, **described}
    if found["type"] == "array" and "items" not in found:
        raise ValueError(f"{'.'.join(value.path)}: what are the items of this list?")
    return found


def settings_schema(component: str) -> dict[str, Any]:
    """Name to schema of every setting of a component that a user of the chart may give."""
    properties: dict[str, Any] = {}
    for model in CLASSES[component]:
        hints = typing.get_type_hints(model)
        for field in dataclasses.fields(model):
            if field.name in OWNED[component]:
                continue
            name = f"fault_{field.name}" if model is Faults else field.name
            found = _type_schema(hints[field.name])
            bounds = ranges.of(field)._asdict()
            found |= {_BOUNDS[name]: each for name, each in bounds.items() if each is not None}
            if section := _SECTIONS.get(field.name):
                found |= section_schema(section)
            other = properties.get(name, found)
            if other["type"] != found["type"]:
                found = {"type": "number"}  # one engine takes whole numbers only
            elif "minimum" in found and "minimum" in other:
                found["minimum"] = min(found["minimum"], other["minimum"])
            if text := field.metadata.get("help"):
                found["description"] = " ".join(text.split())
            properties[name] = found
    return dict(sorted(properties.items()))


def section_schema(name: str) -> dict[str, Any]:
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
    path = {"type": "string", "pattern": rf"^({'|'.join(offered(f'tandem.{name}'))})$|^\S+[.:]\S+$"}
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


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is types.UnionType:
        return _type_schema(arguments[0])
    if origin is tuple:
        return {"type": "array", "items": _type_schema(arguments[0])}
    return {"type": _TYPES.get(origin or hint, "string")}
