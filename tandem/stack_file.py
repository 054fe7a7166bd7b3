"""A file for a whole stack, and the part of it that each component is told.

The sections and their names are those of the chart's values (helm/tandem/values.yaml), of which
such a file is a part: the file that `tandem up --config` serves installs the chart, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from tandem import settings_file
from tandem.errors import ConfigError
from tandem.settings_file import Place, SettingsFile

SECTIONS: Final = {
    "frontend": "frontend",
    "router": "router",
    "prefill_worker": "prefill",
    "decode_worker": "decode",
    "aggregated_worker": "worker",
}
"""The section of each component."""
PERMISSIONS: Final = (
    "client_logits_processors",
    "allow_reports",
    "allow_external_scores",
    "allow_kv_hints",
)
"""Settings that a frontend and its router have alike: what one lets through the other must too."""
_ALL: Final = (
    "listen metrics_listen drain_seconds log_format log_level otlp_endpoint trace_sample_ratio"
    " tls_cert tls_key tls_ca tls_peer_name"
)
_WORKER: Final = (
    "model_path served_model_name advertise_host name engine engine_options hook hooks classifiers"
    " logits_processors lora_adapters deployment_revision ready_when_paired nodes node_rank leader"
    " token_processes"
)
_FRONTEND: Final = (
    "model_path served_model_name models model_names_file router api_keys api_keys_file"
    " key_limit_shares https_cert https_key"
)
_ROUTER: Final = (
    "discovery namespace prefill decode workers prefill_service decode_service worker_service"
    " voucher_key_file decode_routers routers router_service advertise_host"
)
_ENGINE: Final = (
    "bootstrap_port data_parallel decode_data_parallel decode_pipeline_parallel"
    " decode_tensor_parallel device kv_port pipeline_parallel side_channel_port tensor_parallel"
    " transfer_backend"
)
OWNED: Final[Mapping[str, frozenset[str]]] = {
    "frontend": frozenset(f"{_ALL} {_FRONTEND}".split()),
    "router": frozenset(f"{_ALL} {_ROUTER}".split()).union(PERMISSIONS),
    "prefill": frozenset(f"{_ALL} {_WORKER}".split()),
    "decode": frozenset(f"{_ALL} {_WORKER}".split()),
    "worker": frozenset(f"{_ALL} {_WORKER}".split()),
    "engine": frozenset(_ENGINE.split()),
}
"""Settings that follow from a stack or from sections of their own: no `config` takes them."""
_FILE: Final = "file://"
_URI: Final = f"^({_FILE}/.+)?$"
_OF_VLLM: Final = "tensorParallel"
"""The only value of `engine` below that workers of vLLM are told too."""
_NUMBERS: Final = {
    _OF_VLLM: "tensor_parallel",
    "dataParallel": "data_parallel",
    "pipelineParallel": "pipeline_parallel",
}
_DECODE_NUMBERS: Final = {
    "decodeTensorParallel": "decode_tensor_parallel",
    "decodeDataParallel": "decode_data_parallel",
    "decodePipelineParallel": "decode_pipeline_parallel",
}
"""Values of `engine`, how many accelerators compute together, and the option of SGLang of each."""
_WORKERS: Final = frozenset({"prefill", "decode", "worker"})
_EVERY: Final = frozenset(SECTIONS.values())
_TOLD: Final[tuple[tuple[Place, Place, frozenset[str]], ...]] = (
    (("logs", "format"), ("log_format",), _EVERY),
    (("logs", "level"), ("log_level",), _EVERY),
    (("tracing", "otlpEndpoint"), ("otlp_endpoint",), _EVERY),
    (("tracing", "sampleRatio"), ("trace_sample_ratio",), _EVERY),
    (("model", "name"), ("served_model_name",), _WORKERS | {"frontend"}),
    (("frontend", "apiKeysFile", "path"), ("api_keys_file",), frozenset({"frontend"})),
    (("hooks",), ("hooks",), _WORKERS),
    (("logitsProcessors",), ("logits_processors",), _WORKERS),
    (("classifiers",), ("classifiers",), frozenset({"decode", "worker"})),
    *(
        (("engine", name), ("engine_options", option), sections)
        for options, sections in (
            ({"device": "device"} | _NUMBERS, _WORKERS),
            (_DECODE_NUMBERS, _WORKERS - {"worker"}),
        )
        for name, option in options.items()
    ),
)
"""The place of a value, the setting that the value is, and the sections that are told it."""

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Settings = dict[str, Any]


class StackModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model of all workers."""

    uri: Annotated[str, Meta(extra_json_schema={"pattern": _URI})] = ""
    """file:///folder, in Hugging Face's layout; empty: the tiny model."""
    name: Annotated[str, Meta(pattern="^[^\\s:]*$")] = ""
    """What requests call it; empty: the folder's name."""


class StackEngine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What computes in all workers. All but `type` and `options` are for SGLang, and
    `tensorParallel` for vLLM too; by `device` the chart tells whether pods of vLLM ask for
    accelerators.
    """

    type: Literal["auto", "sglang", "vllm", "sim"] = "auto"
    device: Literal["cuda", "cpu"] = "cuda"
    tensorParallel: AtLeastOne = 1
    decodeTensorParallel: Count = 0
    dataParallel: AtLeastOne = 1
    decodeDataParallel: Count = 0
    pipelineParallel: AtLeastOne = 1
    decodePipelineParallel: Annotated[int, Meta(ge=0, le=1)] = 0
    options: Settings = {}


class StackAdapter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter of the model."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    path: Annotated[str, Meta(pattern="^/.+")]


class StackLogs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How all components log."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


class StackTracing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans of all components: the collector, and the share of requests."""

    otlpEndpoint: Annotated[str, Meta(pattern="^(https?://[^ @]+)?$")] = ""
    sampleRatio: Annotated[float, Meta(ge=0, le=1)] = 0.1


class StackKeyFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of clients' keys that `tandem keys new` makes lines of."""

    path: Annotated[str, Meta(pattern="^(/.+)?$")] = ""


class StackService(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients reach the frontend."""

    port: Annotated[int, Meta(ge=1, le=65535)] = 8000


class StackFrontend(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP server."""

    config: Settings = {}
    apiKeysFile: StackKeyFile = StackKeyFile()
    service: StackService = StackService()


class StackRouter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routers."""

    replicas: AtLeastOne = 1
    config: Settings = {}


class StackPrefill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers that read prompts."""

    replicas: Count = 1
    config: Settings = {}
    engineOptions: Settings = {}


class StackDecode(StackPrefill, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers that make tokens."""

    tokenProcesses: Annotated[int, Meta(ge=1, le=64)] = 1


class StackAggregated(StackPrefill, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers that serve both phases."""

    enabled: bool = False


class StackFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stack's file says."""

    model: StackModel = StackModel()
    engine: StackEngine = StackEngine()
    loraAdapters: Annotated[list[StackAdapter], Meta(max_length=256)] = field(default_factory=list)
    hooks: Settings = {}
    classifiers: Settings = {}
    logitsProcessors: Settings = {}
    logs: StackLogs = StackLogs()
    tracing: StackTracing = StackTracing()
    frontend: StackFrontend = StackFrontend()
    router: StackRouter = StackRouter()
    prefill: StackPrefill = StackPrefill()
    decode: StackDecode = StackDecode()
    worker: StackAggregated = StackAggregated()

    @property
    def model_path(self) -> Path | None:
        """The model's folder; None: none is named."""
        return Path(self.model.uri.removeprefix(_FILE)) if self.model.uri else None


def read(path: str) -> StackFile:
    """Raises ConfigError, with the line, for a file that says what no stack has."""
    return _checked(settings_file.read(path))


def part(path: str, component: str) -> SettingsFile:
    """What a stack's file tells a component, such as "decode_worker": as a settings file of its
    own, whose lines are those of the stack's file. Raises ConfigError as `read` does.
    """
    file = settings_file.read(path)
    stack = _checked(file)
    told = _Part(file)
    section = SECTIONS[component]
    for name in _at(file.content, (section, "config"), {}):
        told.take((section, "config", name), (name,))
    if section == "router":
        for name in PERMISSIONS:
            told.take(("frontend", "config", name), (name,))
    if section in _WORKERS:
        for options in (("engine", "options"), (section, "engineOptions")):
            for name in _at(file.content, options, {}):
                told.take((*options, name), ("engine_options", name))
        for index, adapter in enumerate(stack.loraAdapters):
            told.take(("loraAdapters", index, "path"), ("lora_adapters", adapter.name))
    for source, setting, sections in _TOLD:
        if source[0] == "engine" and source[1] != _OF_VLLM and stack.engine.type == "vllm":
            continue
        if section in sections and _at(file.content, source) not in ("", {}):
            told.take(source, setting)
    if stack.model_path and section != "router":
        told.take(("model", "uri"), ("model_path",), str(stack.model_path))
    if stack.engine.type != "auto" and section in _WORKERS:
        told.take(("engine", "type"), ("engine",))
    return SettingsFile(file.path, told.content, told.lines, told.texts())


class _Part:
    """Values of a file at places of their own."""

    def __init__(self, file: SettingsFile) -> None:
        self._file = file
        self.content: dict[str, Any] = {}
        self.lines: dict[Place, int] = {}

    def take(self, source: Place, target: Place, value: Any = None) -> None:
        """Put what stands at `source` to `target`, as it is or as `value`. Nothing stands there: no
        effect.
        """
        if value is None and (value := _at(self._file.content, source)) is None:
            return
        inside: Any = self.content
        for name in target[:-1]:
            inside = inside.setdefault(name, {})
        inside[target[-1]] = value
        for place, line in self._file.lines.items():
            if place[: len(source)] == source:
                self.lines[(*target, *place[len(source) :])] = line
        for depth in range(1, len(target)):
            self.lines.setdefault(target[:depth], self.lines.get(target, 1))

    def texts(self) -> dict[str, int]:
        """The texts that stand in the lines of this part."""
        own = set(self.lines.values())
        return {text: line for text, line in self._file.texts.items() if line in own}


def _at(content: Any, place: Place, default: Any = None) -> Any:
    """What stands at a place of a checked file; else the default."""
    for step in place:
        if isinstance(step, int):
            content = content[step]
        elif (content := (content or {}).get(step)) is None:
            return default
    return content


def _checked(file: SettingsFile) -> StackFile:
    given = {name: value for name, value in file.content.items() if value is not None}
    try:
        stack = settings_file.read_section(StackFile, "", given)
        for problem in _problems(stack):
            raise ConfigError(problem)
    except ConfigError as error:
        raise file.located(error, file.content) from None
    return stack


def _problems(stack: StackFile) -> Iterator[str]:
    """What the sections say that is not theirs to say."""
    options = {"engine.options": stack.engine.options}
    for section in sorted(_EVERY):
        said = getattr(stack, section)
        for name in sorted(said.config.keys() & OWNED[section]):
            yield f"{section}.config.{name} is not taken here: {_elsewhere(name, section)}"
        if section in _WORKERS:
            options[f"{section}.engineOptions"] = said.engineOptions
    for place, names in options.items():
        for name in sorted(names.keys() & OWNED["engine"]):
            yield f"{place}.{name} is not taken here: {_elsewhere(name, 'engine')}"
    if stack.engine.type == "vllm":
        for name in (*_NUMBERS, *_DECODE_NUMBERS):
            if name != _OF_VLLM and getattr(stack.engine, name) > 1:
                yield f"engine.{name}: workers of vLLM know {_OF_VLLM} alone: leave {name} out"
    if not re.fullmatch(_URI, stack.model.uri):
        yield (
            "model.uri must be file:///folder here: `tandem fetch-model` brings a model of a hub or"
            " a bucket into a folder"
        )
    pairs = stack.prefill.replicas, stack.decode.replicas
    if not all(pairs) and (any(pairs) or not stack.worker.enabled):
        yield "prefill.replicas and decode.replicas may be 0 together, where worker.enabled is true"


def _elsewhere(name: str, section: str) -> str:
    """Who decides a setting instead."""
    wanted = ("engine_options", name) if section == "engine" else (name,)
    if name in PERMISSIONS:
        return "the router lets through what frontend.config does"
    places = {setting: source for source, setting, _ in _TOLD}
    places |= {
        ("engine",): ("engine", "type"),
        ("engine_options",): ("engine", "options"),
        ("hook",): ("hooks", "chain"),
        ("lora_adapters",): ("loraAdapters",),
        ("model_path",): ("model", "uri"),
        ("token_processes",): ("decode", "tokenProcesses"),
    }
    if source := places.get(wanted):
        return f"write {'.'.join(map(str, source))}"
    return "the stack itself decides it"
