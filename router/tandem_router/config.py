"""The router's settings, with their defaults and help texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem import sockets
from tandem.byte_budget import DEFAULT_BYTES
from tandem.component_settings import GrpcPortSettings, StorySettings
from tandem.config import setting
from tandem.errors import ConfigError
from tandem.message_limits import MAX_OUTPUTS, MAX_TASK_BYTES
from tandem.wire import addresses
from tandem.wire.grpc import check_address

_LEAST_HELD_BYTES = 2 * MAX_TASK_BYTES


@dataclass(frozen=True, kw_only=True)
class RouterConfig(GrpcPortSettings, StorySettings):
    """The router of Tandem: admission, pairing, relay."""

    listen: str = setting("127.0.0.1:7000", "Address to serve gRPC on.")
    metrics_listen: str = setting(
        "127.0.0.1:7001",
        "Address of /metrics, /live, /ready and /debug, plain HTTP; not for clients.",
    )
    discovery: Literal["static", "dns", "kubernetes"] = setting(
        "static",
        "How workers are found: static (the addresses in prefill, decode and workers), dns"
        " (every address of the names there) or kubernetes (the EndpointSlices of Services).",
    )
    prefill: tuple[str, ...] = setting(
        (), "Prefill workers, each host:port; with discovery: dns every address of the host is one."
    )
    decode: tuple[str, ...] = setting((), "Decode workers, written as prefill workers are.")
    workers: tuple[str, ...] = setting(
        (),
        "Aggregated workers, which serve both phases, written as prefill workers are:"
        " beside the pairs, or alone.",
    )
    prefill_service: str = setting(
        "",
        "With discovery: kubernetes, the Service whose endpoints are the prefill workers, at the"
        " port named grpc. The router connects to workers that are not ready, too.",
    )
    decode_service: str = setting(
        "",
        "With discovery: kubernetes, the Service of the decode workers. Ports named grpc-2 and"
        " so on lead to a worker's further token processes.",
    )
    worker_service: str = setting(
        "", "With discovery: kubernetes, the Service of the aggregated workers."
    )
    namespace: str = setting(
        "",
        "With discovery: kubernetes, the namespace of all Services. Empty: the router's own"
        " namespace.",
    )
    decode_routers: int = setting(
        0,
        "Number of routers that serve each decode worker, chosen by the addresses of routers and"
        " worker; every router serves all prefill workers. With 2, the loss of a router leaves"
        " each worker another. 0: every router serves all workers. Set all routers alike;"
        " frontends must reach each of them.",
        at_least=0,
    )
    decode_routers_from: int = setting(
        32,
        "With decode_routers: every router serves all decode workers while fewer decode workers"
        " are listed than this, about what half a core of a router carries. Set all routers"
        " alike.",
        at_least=0,
    )
    routers: tuple[str, ...] = setting(
        (),
        "With decode_routers, the addresses of all routers, each host:port. With discovery: static,"
        " one whose port takes no connection does not count; with dns every address of the host is"
        " a router.",
    )
    router_service: str = setting(
        "",
        "With decode_routers and discovery: kubernetes, the Service whose ready endpoints are the"
        " routers, at the port named grpc.",
    )
    advertise_host: str = setting(
        "",
        "With decode_routers, the host by which other routers find this one: an IP address"
        " unless discovery is static, and a pod's own IP on Kubernetes. With the port of listen"
        " it makes this router's own address. Empty: the host of listen.",
    )
    prefill_policy: str = setting(
        "prefix",
        "Policy that chooses a prefill worker: prefix, least_loaded, round_robin, or the name of"
        " an entry point that an installed package offers in the group tandem.router_policies.",
    )
    decode_policy: str = setting(
        "least_loaded",
        "Policy that chooses a decode worker: least_loaded, round_robin, or an entry point's name.",
    )
    prefix_index_bytes: int = setting(
        256 * 1024 * 1024,
        "Memory for the router's index of prefill workers' prefix caches: about 270 bytes for"
        " each 64 tokens that a worker caches. Beyond it, prefixes that were used longest ago"
        " are forgotten.",
    )
    disaggregate: Literal["auto", "always", "never"] = setting(
        "auto",
        "Which way a sequence goes where a pair and an aggregated worker are both free: auto (where"
        " its finish is predicted earlier), always (the pair) or never (the aggregated worker).",
    )
    policy_seconds: float = setting(
        0.01,
        "Time that a policy of an installed package may take for a choice. After a longer choice"
        " least_loaded chooses instead, for a hundred times as long as that choice took.",
        above=0,
    )
    max_queue: int = setting(
        1024, "Sequences that wait for a pair; one more is refused with queue_full.", at_least=1
    )
    max_retries: int = setting(
        1,
        "Most retries of a sequence, on other pairs, while none of its output was shown.",
        at_least=0,
    )
    max_n: int = setting(128, "Largest `n` of a Generate call.", at_least=1, at_most=MAX_OUTPUTS)
    max_fanout_bytes: int = setting(
        256 * 1024 * 1024,
        "Largest product of a request's bytes and its `n`; a larger request is refused with"
        " request_too_large.",
        at_least=1,
    )
    max_held_bytes: int = setting(
        DEFAULT_BYTES,
        "Memory held for all requests together: tasks of requests that wait or may be run again,"
        " and output for frontends. A request that would take more than three quarters is"
        " refused with queue_full; where output finds no room, the frontend that holds most of"
        " it is given up. Set it well below the memory limit of the process.",
        at_least=_LEAST_HELD_BYTES,
    )
    client_logits_processors: tuple[str, ...] = setting(
        (),
        "Names of logits processors that requests may use: all that the frontends' setting of"
        " this name lists. Processors behind fields of the API (forms of answers, `min_tokens`,"
        " `thinking_token_budget`) need no name here.",
    )
    allow_reports: bool = setting(
        False,
        "Let requests ask for reports. Set it true where a frontend's setting of this name is.",
    )
    allow_external_scores: bool = setting(
        False,
        "Let requests ask for external scores. Set it true where a frontend's setting of"
        " this name is.",
    )
    allow_kv_hints: bool = setting(
        False,
        "Let requests have hints for caches. Set it true where a frontend's setting of this"
        " name is.",
    )
    voucher_key_file: str = setting(
        "",
        "File with the key, 32 bytes or more, by which routers sign the voucher that a"
        " context-only request leaves. All routers of a deployment need the same key. Empty:"
        " context-only requests are refused.",
    )
    default_timeout_seconds: float = setting(
        600.0, "Deadline of a Generate call that names none.", above=0
    )
    max_timeout_seconds: float = setting(
        3600.0,
        "Longest deadline; a frontend's longer one is cut to it, a Generate call's refused.",
        above=0,
    )
    settle_seconds: float = setting(
        10.0,
        "Time that a worker has to close a cancelled leg; later the leg's slot counts as overdue.",
        above=0,
    )
    pair_wait_seconds: float = setting(
        10.0,
        "Time for which a queued sequence waits while no pair of workers for it takes work.",
        above=0,
    )
    pair_memory_seconds: float = setting(
        600.0,
        "Time after the loss of a model's last pair in which requests for the model are queued,"
        " and not refused at once. 0: they are refused at once.",
        at_least=0,
    )
    expected_models: tuple[str, ...] = setting(
        (),
        "Models whose workers may come at any time, even if none has come yet or the last went"
        " long ago: requests for these models wait pair_wait_seconds for a pair, and frontends"
        " are ready meanwhile. For a fleet that is scaled to nothing.",
    )
    worker_silence_seconds: float = setting(
        10.0,
        "Silence after which a worker counts as lost, or up to a quarter later. A worker reports"
        " at least each second.",
        above=0,
    )
    stall_seconds: float = setting(
        10.0,
        "A worker whose engine has work and has made no step for this long gets nothing new"
        " until the engine makes one. Engines that do not report their steps (SGLang's prefill)"
        " are exempt.",
        above=0,
    )
    stall_failover_seconds: float = setting(
        30.0,
        "After this long without a step, at least stall_seconds, the worker is given up:"
        " requests without output so far run elsewhere, others end with worker_lost.",
        above=0,
    )
    eject_after_faults: int = setting(
        3,
        "Faults in a worker's output within a minute after which the worker is taken out for"
        " eject_seconds. 0: never.",
        at_least=0,
    )
    eject_seconds: float = setting(
        60.0,
        "Time for which a worker whose output could not be read gets nothing new.",
        above=0,
    )
    eject_after_failures: int = setting(
        5,
        "Legs that must fail by a worker's own fault within the last 30 to 60 seconds before the"
        " worker may be ejected for them. 0: never.",
        at_least=0,
    )
    eject_ratio: float = setting(
        0.3,
        "Excess, above 0 and at most 1, of a worker's share of failed legs over the median share"
        " in its group that gets the worker ejected.",
        above=0,
        at_most=1,
    )
    eject_first_seconds: float = setting(
        10.0,
        "Time for which an ejected worker gets nothing new; twice as long each further time in a"
        " row, up to 600 seconds. Then the worker gets one request at a time until three have"
        " ended well.",
        above=0,
    )
    eject_most_share: float = setting(
        0.5,
        "Largest share of the workers of a group and phase that may be ejected at once, from 0"
        " to 1. The last worker is never ejected.",
        at_least=0,
        at_most=1,
    )
    canary_seconds: float = setting(
        330.0,
        "Time in which a canary must end: a hand-over of a few tokens that proves a worker that"
        " has moved no KV since its start, before the worker gets a request and is ready. Set it"
        " longer than an engine's first hand-over may take (SGLang's"
        " first_handover_timeout_seconds, 300). 0: no canaries are sent, and every worker counts"
        " as proved.",
        at_least=0,
    )
    max_backlog_bytes: int = setting(
        64 * 1024 * 1024,
        "Output kept for one frontend. Past this, a frontend that has read nothing for 5 seconds"
        " is given up: its stream is closed, and its requests are cancelled. Past four times as"
        " much, any frontend is given up.",
        at_least=1,
    )
    drain_seconds: float = setting(
        30.0,
        "After SIGTERM, time that open requests have to finish; then they end with an error.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve."""
        super().__post_init__()
        if self.stall_failover_seconds < self.stall_seconds:
            raise ConfigError("stall_failover_seconds must be at least stall_seconds")
        if self.default_timeout_seconds > self.max_timeout_seconds:
            raise ConfigError("default_timeout_seconds must not exceed max_timeout_seconds")
        check_address(self.listen, setting="listen")
        sockets.check(self.metrics_listen, setting="metrics_listen")
        self._check_discovery()
        self._check_sharing()

    def _check_discovery(self) -> None:
        pair = [each for each in (self.prefill_service, self.decode_service) if each]
        services = [each for each in (*pair, self.worker_service) if each]
        workers = (*self.prefill, *self.decode, *self.workers)
        if self.discovery == "kubernetes":
            if len(pair) == 1 or not services or len(set(services)) < len(services):
                raise ConfigError(
                    "discovery: kubernetes needs prefill_service and decode_service, or"
                    " worker_service, or all three, each another Service"
                )
            if workers:
                raise ConfigError(
                    "prefill, decode and workers are not used with discovery: kubernetes"
                )
        elif services:
            raise ConfigError(
                "prefill_service, decode_service and worker_service are used with discovery:"
                " kubernetes only"
            )
        addresses.check("workers", workers)

    def _check_sharing(self) -> None:
        addresses.check("routers", self.routers)
        if not self.decode_routers:
            return
        if self.discovery == "kubernetes":
            if not self.router_service or self.routers:
                raise ConfigError(
                    "decode_routers needs router_service, and no routers, with discovery:"
                    " kubernetes"
                )
            if self.router_service in (
                self.prefill_service,
                self.decode_service,
                self.worker_service,
            ):
                raise ConfigError("router_service must be another Service than the workers'")
        elif not self.routers or self.router_service:
            raise ConfigError(
                f"decode_routers needs routers, and no router_service, with discovery:"
                f" {self.discovery}"
            )
        if self.discovery == "static":
            if self.own_address not in self.routers:
                raise ConfigError(
                    f"{self.own_address} is not one of routers: set advertise_host to this"
                    " router's host there"
                )
        elif not addresses.names_one_machine(self._own_host):
            raise ConfigError(
                f"{self._own_host} is no IP address by which other routers find this one: set"
                " advertise_host"
            )

    @property
    def own_address(self) -> str:
        """The router's address, as other routers find it."""
        return addresses.join(self._own_host, self.listen.rpartition(":")[2])

    @property
    def _own_host(self) -> str:
        return self.advertise_host or self.listen.rpartition(":")[0].strip("[]")
