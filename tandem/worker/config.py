"""The settings of a worker, prefill and decode alike."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tandem import sockets
from tandem.byte_budget import DEFAULT_BYTES
from tandem.component_settings import GrpcPortSettings, SpecSettings
from tandem.config import REQUIRED, setting
from tandem.engine import lora
from tandem.engine.base import Nodes, ParkingLimits
from tandem.errors import ConfigError
from tandem.hooks import settings as hook_settings
from tandem.hooks.audit import settings as audit_settings
from tandem.hooks.classifiers import settings as classifier_settings
from tandem.hooks.contract import Phase
from tandem.logits import settings as logits_settings
from tandem.logits.forms.workshop import WorkshopLimits
from tandem.message_limits import MAX_TASK_BYTES
from tandem.wire.grpc import check_address
from tandem.wire.prompt_chunks import ChunkRoom
from tandem.worker import kv_events

WorkerKind = Phase | Literal["worker"]
"""What a process serves: a phase, or as an aggregated worker both."""
_PORTS: dict[WorkerKind, int] = {"prefill": 7100, "decode": 7200, "worker": 7300}
_HOST_AND_PORT = re.compile(r".+:[0-9]+")
_MOST_PARK_SECONDS = 24 * 3600
_MOST_TOKEN_PROCESSES = 64
_LEAST_HELD_BYTES = 2 * MAX_TASK_BYTES
_MOST_PORT = 65535
_WILDCARDS = ("", "0.0.0.0", "[::]", "::", "*")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(GrpcPortSettings, SpecSettings):
    """A prefill, decode or aggregated worker of Tandem."""

    listen: str = setting(
        "",
        "Address to serve gRPC on; empty: 127.0.0.1:7100 for prefill, 127.0.0.1:7200 for decode,"
        " 127.0.0.1:7300 for an aggregated worker.",
    )
    metrics_listen: str = setting(
        "",
        "Address of /metrics, /live and /ready, plain HTTP; empty: 127.0.0.1:7101 for prefill,"
        " 127.0.0.1:7201 for decode, 127.0.0.1:7301 for an aggregated worker.",
    )
    gateway_metrics: Literal["", "vllm", "sglang"] = setting(
        "",
        "Also give the worker's load under the names of vLLM or SGLang, for gateways, scalers and"
        " dashboards that read these; empty: under Tandem's alone. See docs/monitoring.md.",
    )
    advertise_host: str = setting(
        "",
        "This machine's name or address as the other workers reach it, for the KV hand-over; empty:"
        " the host of `listen`. A pod's own IP on Kubernetes.",
    )
    name: str = setting(
        "",
        "The worker's name, unique in a deployment; empty: hostname-phase-port, with worker as the"
        " phase of an aggregated one.",
    )
    deployment_revision: str = setting(
        "",
        "Name of this configuration in the deployment. Workers of different revisions are never"
        " paired, so that a rollout mixes nothing.",
    )
    ready_when_paired: bool = setting(
        False,
        "The worker is not ready before a router has said once that a pair uses it; from then on"
        " it stays ready, whatever becomes of its peers. For rollouts that must not outrun the"
        " other phase.",
    )
    engine: Literal["sim", "sglang", "vllm"] = setting(
        "sglang", "The engine that computes: sglang, vllm, or sim, a simulation."
    )
    model_path: Path = setting(REQUIRED, "Folder of the model, in Hugging Face layout.")
    served_model_name: str = setting(
        "", "The `model` that requests name; empty: the name of the model's folder."
    )
    lora_adapters: dict[str, str] = setting(
        {},
        "LoRA adapters of the model: the folder of each, in PEFT's layout, by the adapter's"
        " name. Requests name an adapter as model:adapter. Set the same in both phases. See"
        " docs/lora.md.",
    )
    max_lora_adapters: int = setting(
        64, "Most LoRA adapters of one worker.", above=0, at_most=lora.MOST_ADAPTERS
    )
    max_lora_rank: int = setting(
        128,
        "Highest rank of a LoRA adapter; the worker does not start with one of a higher rank.",
        above=0,
    )
    engine_options: dict[str, Any] = setting(
        {}, "Options of the engine. Each engine documents its own options, and refuses others."
    )
    nodes: int = setting(
        1,
        "Machines that compute this worker together, with one process on each; sglang alone.",
        at_least=1,
    )
    node_rank: int = setting(
        0,
        "Number of this node. Node 0 leads: it serves the worker. Other nodes follow, and serve"
        " /live, /ready and /metrics alone.",
    )
    leader: str = setting(
        "",
        "With nodes above 1: host:port at which the nodes meet, which is the host that node 0"
        " advertises and a free port there.",
    )
    max_sequences: int = setting(
        256,
        "Most sequences open at once. Routers are told this number, and the worker refuses"
        " one more.",
        at_least=1,
    )
    token_processes: int = setting(
        1,
        "Decode: processes that turn tokens into output, each with an equal part of"
        " max_sequences and max_held_bytes; sglang alone. Processes from the second on listen at"
        " the port of `listen` plus their number, and routers must list them too. See"
        " docs/engines/sglang.md.",
        at_least=1,
        at_most=_MOST_TOKEN_PROCESSES,
    )
    early_reports_per_second: float = setting(
        10.0,
        "Most early reports a second of load and prefix cache that a worker sends each router."
        " An early report comes beside the regular ones, as soon as 2,048 prompt tokens or a"
        " sixteenth of the worker's slots were started or ended. 0: no early reports.",
        at_least=0,
    )
    kv_events: dict[str, Any] = setting(
        {},
        "Prefill and aggregated: publish over ZeroMQ, in vLLM's format, which blocks of prompts the"
        " KV cache holds, as a settings file writes it: endpoint, replay_endpoint, topic,"
        " buffer_steps and hwm. Empty: nothing is published. Whoever connects reads every prompt."
        " See docs/kv-events.md.",
    )
    max_held_bytes: int = setting(
        DEFAULT_BYTES,
        "Memory held for all sequences together: tasks, output that waits for classifiers or for"
        " prefill's verdict, and output that waits for routers. A sequence whose task would take"
        " more than three quarters is refused; where output finds no room, the sequence or the"
        " router whose output holds most is ended. Set it well below the memory limit of the"
        " process.",
        at_least=_LEAST_HELD_BYTES,
    )
    hook: str = setting(
        "", 'Import path of the output hook\'s class, "package.module:Class". Empty: no hook.'
    )
    hooks: dict[str, Any] = setting(
        {},
        "A chain of output hooks instead of one, as a settings file writes it: `chain`, a list of"
        " hooks with path, name, config, timeout_ms, on_error, shadow, phases and models; and"
        " `workers`, processes that run it (0: the worker itself). See docs/hooks/README.md.",
    )
    classifiers: dict[str, Any] = setting(
        {},
        "Decode: classifiers that judge each output, as a settings file writes it: hold_back,"
        " window_tokens, refusal, max_concurrency, regenerate, plugins and entries. See"
        " docs/hooks/classifiers.md.",
    )
    audit: dict[str, Any] = setting(
        {},
        "The audit log of hooks' and classifiers' decisions, as a settings file writes it: path,"
        " content, key_file, max_bytes, files, passes and on_full. See docs/hooks/audit.md.",
    )
    propagate_terminate: bool = setting(
        False,
        "Prefill: a terminate by this worker's hook ends the whole request. False: decode goes"
        " on, and decode's own hook decides.",
    )
    test_logits_processor: bool = setting(
        False,
        'Force every answer to be exactly "Hello world!", which proves that logits'
        " processors work.",
    )
    logits_processors: dict[str, Any] = setting(
        {},
        "Logits processors that requests may name beside the ready-made ones:"
        " name=package.module:Class. A settings file can say more of each:"
        " docs/logits/configuring.md.",
    )
    max_logits_processors: int = setting(
        16, "Most logits processors that one request may name.", at_least=0
    )
    logits_timeout_ms: float = setting(
        1000.0,
        "Most time that one call of a logits processor may take, ms, without the time in which a"
        " GPU first works for others. A longer call fails its request.",
        above=0,
    )
    key_series: int = setting(
        100,
        "Most keys whose part of the worker's time is counted by itself; that of further keys is"
        " counted as `_other`.",
        at_least=0,
    )
    form_processes: int = setting(
        1,
        "Processes that compile the forms of answers (JSON Schema, grammar) that requests ask for.",
        above=0,
    )
    form_cpu_seconds: int = setting(
        2,
        "CPU time that compiling one form may take; a form that takes more is refused (400).",
        above=0,
    )
    form_timeout_seconds: float = setting(
        30.0,
        "Time by the clock that compiling one form may take, on a busy machine.",
        above=0,
    )
    form_memory_mb: int = setting(256, "Memory that compiling one form may take, MiB.", above=0)
    form_cache_mb: int = setting(
        512,
        "Memory for compiled forms, in use or kept for later requests, MiB.",
        above=0,
    )
    max_parked: int = setting(
        64,
        "Prefill: most prompts whose KV is parked for a later request, or being computed for"
        " that; one more is refused with parking_full. 0: no KV is parked. See"
        " docs/executor/context-only.md.",
        at_least=0,
    )
    max_parked_bytes: int = setting(
        4 * 2**30,
        "Prefill: most memory of the engine that all parked KV may take.",
        at_least=0,
    )
    park_seconds: float = setting(
        60.0,
        "Prefill: time for which KV stays parked. Then the KV is freed, and a request for it is"
        " refused.",
        above=0,
        at_most=_MOST_PARK_SECONDS,
    )
    drain_seconds: float = setting(
        300.0,
        "After SIGTERM, time that open sequences have to finish; then they end with an error."
        " Parked KV is kept for that time too, or until it is freed.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve."""
        super().__post_init__()
        if self.held_bytes() < _LEAST_HELD_BYTES:
            least = _LEAST_HELD_BYTES * self.token_processes
            raise ConfigError(f"max_held_bytes must be at least {least}")
        if not 0 <= self.node_rank < self.nodes:
            raise ConfigError(
                f"node_rank must be from 0 to below nodes: {self.node_rank} is not, of {self.nodes}"
            )
        if self.nodes > 1 and not _HOST_AND_PORT.fullmatch(self.leader):
            raise ConfigError(f"several nodes need leader, as host:port, not {self.leader!r}")
        if self.listen:
            check_address(self.listen, setting="listen")
        if self.metrics_listen:
            sockets.check(self.metrics_listen, setting="metrics_listen")
        self._check_lora_adapters()
        hook_settings.parse(self.hook, self.hooks)
        classifier_settings.parse(self.classifiers)
        audit_settings.parse(self.audit)
        kv_events.parse(self.kv_events)
        logits_settings.parse(self.logits_processors)

    def _check_lora_adapters(self) -> None:
        if len(self.lora_adapters) > self.max_lora_adapters:
            raise ConfigError(
                f"lora_adapters holds {len(self.lora_adapters)}: more than max_lora_adapters"
            )
        lora.check_names(self.lora_adapters)

    def workshop_limits(self) -> WorkshopLimits:
        """What compiling forms may take here."""
        return WorkshopLimits(
            processes=self.form_processes,
            cpu_seconds=self.form_cpu_seconds,
            seconds=self.form_timeout_seconds,
            memory_bytes=self.form_memory_mb * 2**20,
            cache_bytes=self.form_cache_mb * 2**20,
        )

    def model_name(self) -> str:
        """What requests call the model."""
        return self.served_model_name or self.model_path.resolve().name

    def held_bytes(self) -> int:
        """What one process may hold."""
        return self.max_held_bytes // self.token_processes

    def chunk_room(self) -> ChunkRoom:
        """What one process may keep of earlier prompts."""
        return ChunkRoom(self.prompt_chunks_mb * 2**20 // self.token_processes)

    def of_process(self, kind: WorkerKind, number: int) -> WorkerConfig:
        """The settings of a further process, from 2: it has a name and a port of its own. Raises
        ConfigError where that is no port.
        """
        host, _, port = self.address(kind).rpartition(":")
        if port.isdecimal() and int(port):  # else any free one, or an address to be refused
            port = str(int(port) + number)
        if port.isdecimal() and int(port) > _MOST_PORT:
            raise ConfigError(f"token process {number} would listen at port {port}")
        return replace(self, listen=f"{host}:{port}", name=f"{self.worker_name(kind)}-{number}")

    def worker_name(self, kind: WorkerKind) -> str:
        """The worker's name, unique in a deployment."""
        port = self.address(kind).rpartition(":")[2]
        return self.name or f"{socket.gethostname()}-{kind}-{port}"

    def address(self, kind: WorkerKind) -> str:
        """Where gRPC is served, "host:port"."""
        return self.listen or f"127.0.0.1:{_PORTS[kind]}"

    def metrics_address(self, kind: WorkerKind) -> str:
        return self.metrics_listen or f"127.0.0.1:{_PORTS[kind] + 1}"

    def parking_limits(self) -> ParkingLimits:
        """How much KV may wait for requests to come."""
        return ParkingLimits(prompts=self.max_parked, bytes=self.max_parked_bytes)

    def engine_nodes(self) -> Nodes:
        return Nodes(count=self.nodes, rank=self.node_rank, leader=self.leader)

    def host(self, kind: WorkerKind) -> str:
        """The machine's address for its peers. Raises ConfigError where `listen` does not say."""
        host = self.advertise_host or self.address(kind).rpartition(":")[0]
        if host in _WILDCARDS:
            raise ConfigError(
                f"{self.address(kind)} names no address that other workers could reach: "
                "set advertise_host"
            )
        return host
