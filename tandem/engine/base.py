"""The seam between Tandem and an inference engine.

A worker gives its engine requests and reads steps. One engine serves one phase, its Role. Rules:

- Every submitted request ends with exactly one Delta whose `end` is set. After it the engine holds
  nothing for the request: its KV is free, or was handed over and acknowledged. No request is open
  for ever: an engine bounds every wait of its own.
- PREFILL gives one Delta: the first token with its end, after the hand-over has settled.
- SamplingParams.prompt_logprobs is for PREFILL and AGGREGATED; what was computed before (a cached
  prefix) has none, and so is computed again. An engine that cannot say them refuses the request.
- PREFILL with `park_seconds` gives the same Delta as soon as the first token is there. The KV stays
  for so long under the request's room, in no request: whoever offers pages for the room first takes
  it, and `cancel` frees it.
- DECODE repeats prefill's first token as its own first, so its stream alone is the whole output.
  Its first Delta carries `kv`.
- A request with `made` goes on behind tokens that another engine made: its next token is what would
  have come after them, its positions, penalties, seeds, processors and `max_tokens` count them as
  output, and they are in no Delta. PREFILL computes their KV with the prompt's.
- AGGREGATED runs both phases in one process, for reference and comparison.
- Token ids are the model's own, an end-of-sequence or stop token included as the last one where one
  ended the sequence.
- Engines ignore SamplingParams.stop and stop_words: the worker's output pipeline owns stop strings
  and stop words.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from tandem.byte_budget import ByteBudget
from tandem.engine.lora import LoraAdapter
from tandem.engine.prefix_log import PrefixLog
from tandem.errors import TandemError
from tandem.logits.forms.workshop import FormPlan
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorSpec
from tandem.logits.tap import LogitsTap
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.tls import PeerTls
from tandem_loop_grpc.connections import ConnectionLimits


class Role(enum.StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"

    @property
    def phase(self) -> common_pb2.Phase.ValueType:
        """The phase that errors of the role name."""
        return _PHASES.get(self, common_pb2.PHASE_UNSPECIFIED)


_PHASES = {Role.PREFILL: common_pb2.PHASE_PREFILL, Role.DECODE: common_pb2.PHASE_DECODE}


@dataclass(slots=True, frozen=True, kw_only=True)
class Nodes:
    """The machines that one engine computes on, and which of them this is."""

    count: int = 1
    rank: int = 0
    """0 leads: it alone takes requests. The others follow it."""
    leader: str = ""
    """Where the ranks meet, "host:port" of the leader; free for the engine. "" on one node."""


ONE_NODE = Nodes()


class EngineRequest(Struct, frozen=True, kw_only=True):
    """The work of one sequence for one engine."""

    request_id: int
    """The worker's own number: unique in this process, never reused."""
    token_ids: Sequence[int]
    """The tokens of the prompt."""
    made: Sequence[int] = ()
    """Tokens that another engine generated: the output goes on behind them."""
    sampling: common_pb2.SamplingParams
    """`seed` already includes the output index; `stop` and `stop_words` are to be ignored."""
    logits: LogitsProcessorSpec | None = None
    """What this role must apply, already gated by stage (tandem.logits.spec.for_role)."""
    embedding_bias: common_pb2.EmbeddingBias | None = None
    """Added to the logits after what `logits` makes of them (tandem.logits.embedding_bias)."""
    room: int = 0
    """Joins the two phases: random, never 0, never reused. 0 only when AGGREGATED."""
    kv_peer: str = ""
    """DECODE: the prefill engine's `kv_endpoint`."""
    timeout_seconds: float = 300.0
    """What is left of the deadline: the engine gives up on a hand-over by then."""
    trace_id: str = ""
    cache_salt: str = ""
    """Cached prefixes are those of requests that have the same one, and the same adapter."""
    kv_hints: str = ""
    """For the engine's KV cache: an envelope as tandem/kv_hints.py reads it. An engine without such
    hints passes over them; empty: none.
    """
    lora_adapter: str = ""
    """One of EngineSettings.lora_adapters, by name; empty: the model alone."""
    tenant: str = ""
    """The client's key, by name; empty: none was asked."""
    output_index: int = 0
    """The sequence's place among the sequences of its request."""
    park_seconds: float = 0.0
    """PREFILL: how long the KV waits for decode when the request has ended; 0: until then alone."""
    parked: bool = False
    """DECODE: prefill has parked the KV; where it has not, VoucherError ends the request."""

    @property
    def context(self) -> Sequence[int]:
        """All tokens that stand before the first one that is to come."""
        return [*self.token_ids, *self.made] if self.made else self.token_ids


class Ending(enum.Enum):
    STOP = "stop"
    """An end-of-sequence or stop token, which is the last of the delta's token_ids."""
    LENGTH = "length"
    """max_tokens or the context was reached. PREFILL ends every good request so."""
    CANCELLED = "cancelled"
    """`cancel` ended the sequence."""
    FAILED = "failed"
    """`Delta.error` says why."""


@dataclass(slots=True, frozen=True)
class Logprobs:
    """Parallel to a delta's token_ids. `top` holds nothing unless alternatives were asked for."""

    chosen: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]]
    """For each token the most likely (token id, log-probability), best first."""


class PromptLogprobs(Struct, frozen=True):
    """Log-probabilities of a prompt: the model's own, before penalties, processors and sampling."""

    token_ids: Sequence[int]
    """The whole prompt's token ids."""
    logprobs: Logprobs
    """Parallel to `token_ids` without the first, which has none: nothing stands before it."""


class KvTransfer(Struct, frozen=True):
    """Size, time and transport of one hand-over."""

    bytes: int
    seconds: float
    transport: str
    """The library, its backend and what the bytes went over, e.g. "nixl/ucx/rdma"."""


class Delta(Struct):
    """What one step brought for one request. Mutable for speed; a new one each time."""

    request_id: int
    token_ids: Sequence[int]
    end: Ending | None = None
    logprobs: Logprobs | None = None
    error: TandemError | None = None
    retryable: bool = False
    """With `error`: another pair may succeed."""
    kv: KvTransfer | None = None
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """PREFILL and AGGREGATED: with the first token, where the request wants them."""
    times: common_pb2.EngineTimes | None = None
    """What came before the first token, where the engine can say it: with that token, or in a delta
    that has nothing else.
    """


Step = Sequence[Delta]


class Sharing(Protocol):
    """How further processes of a worker use the engine that its first process has started, each for
    requests of its own. All methods are called from the event loop of that first process.
    """

    def ticket(self, process: int) -> bytes:
        """What the process of that number, from 2, joins the engine with
        (tandem.engine.factory.join); for each start of it another one.
        """
        ...

    def left(self, process: int) -> None:
        """The process has ended: end the requests that it had open, and free their KV."""
        ...


class UnitState(enum.Enum):
    KEPT = "kept"
    """The promise holds by the unit."""
    UNNEEDED = "unneeded"
    """The promise holds without the unit."""
    LACKING = "lacking"
    """The promise does not hold."""


class EngineUnit(Struct, frozen=True, kw_only=True):
    """Something that Tandem adds to an engine of others, where the engine's release allows it."""

    name: str
    promise: str
    """What holds with the unit."""
    state: UnitState
    lacks: str = ""
    """LACKING: what the release has not."""
    without: str = ""
    """LACKING: what holds instead."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineDescription:
    """What a started engine says of itself."""

    fingerprint: common_pb2.Fingerprint
    limits: worker_pb2.Limits
    kv_endpoint: str = ""
    """PREFILL: where a DECODE engine begins a hand-over, "host:port"."""
    parks: bool = False
    """PREFILL: `park_seconds` may be used."""
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
    prefixes: PrefixLog | None = None
    """PREFILL: changes of the prefix cache; None: the engine does not say."""
    cannot_sample: frozenset[str] = frozenset()
    """Sampling parameters that the engine refuses."""
    cannot_apply: frozenset[str] = frozenset()
    """Logits processors of EngineSettings.registry that the engine refuses."""
    cannot_resume: frozenset[str] = field(default_factory=frozenset)
    """Sampling parameters with which the engine cannot go on behind `made` as if behind its own."""
    sharing: Sharing | None = None
    """How further token processes join; None where the settings name one process."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RankLoad:
    """What one scheduler of an engine holds, as it last said. Each request is in one of the first
    five, or on its way between them.
    """

    rank: int = 0
    """Under data parallelism each rank has a scheduler; else it is 0."""
    running: int
    """In the batch that is computed."""
    queued: int
    """Could be computed, and wait for a place in the batch, or until their form is compiled."""
    preallocating: int
    """Wait for pages of decode's KV cache: in PREFILL until decode offers them, in DECODE until
    some are free."""
    transferring: int
    """KV of these requests moves, or in DECODE waits for prefill to write it."""
    retracted: int
    """Were taken out of the batch because the KV cache was full, and wait to come back."""
    kv_tokens_used: int
    """Tokens of requests. Tokens that the prefix cache alone keeps count as free."""
    kv_tokens_total: int
    accept_length: float | None = None
    """Tokens that a step made for one sequence, on average since the start; None: no speculative
    decoding, or nothing was drafted yet."""


def waiting(role: Role, ranks: Iterable[RankLoad]) -> int:
    """Requests that more room in this engine would help: `Load.waiting_legs`. Those that wait in
    PREFILL for decode's pages are not among them.
    """
    if role is Role.PREFILL:
        return sum(rank.queued for rank in ranks)
    return sum(rank.queued + rank.preallocating + rank.retracted for rank in ranks)


def load_of(
    role: Role, rank: RankLoad, *, open_legs: int, step_age: float | None
) -> worker_pb2.Load:
    """The load of an engine with one scheduler. `step_age`: seconds; None: steps do not show."""
    load = worker_pb2.Load(
        open_legs=open_legs,
        waiting_legs=waiting(role, [rank]),
        kv_tokens_used=rank.kv_tokens_used,
        kv_tokens_total=rank.kv_tokens_total,
    )
    if step_age is not None:
        load.step_age_ms = round(step_age * 1000)
    return load


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineFigures:
    """What metrics tell of an engine beside its load."""

    cpu_seconds: float = 0.0
    """CPU this process spent on what a GPU does in a real engine."""
    logits_states: int = 0
    """Sequences whose logits processors hold state."""
    open_handovers: int | None = None
    """Hand-overs that have begun and are not settled; None: the engine cannot say."""
    parked: int = 0
    """Prompts whose KV is parked."""
    parked_bytes: int = 0
    """Bytes of parked KV."""
    retractions: int | None = None
    """How often requests were taken out of the batch because the KV cache was full; None: the
    engine cannot say."""
    ranks: Sequence[RankLoad] = ()
    """Empty: the engine does not say."""
    units: Sequence[EngineUnit] = ()
    """What Tandem adds to the engine; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingLimits:
    """How much KV may be parked, that which is yet to be computed included."""

    prompts: int = 64
    bytes: int = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What every engine is built from."""

    model_path: Path
    model_name: str
    max_sequences: int
    host: str
    """The address of this machine that peers reach."""
    options: Mapping[str, Any]
    """The engine's own; it refuses those it does not know."""
    registry: Registry
    """The logits processors that requests may name."""
    nodes: Nodes = ONE_NODE
    tls: PeerTls | None = None
    """What gRPC of the engine's own, between the phases, is secured with."""
    connection_limits: ConnectionLimits | None = None
    """What clients of a gRPC port of the engine's own may have."""
    budget: ByteBudget | None = None
    """What came by gRPC of the engine's own, and nobody has read, takes of it."""
    form_cache_bytes: int = 512 * 2**20
    """Most that an engine with grammars of its own may keep of them."""
    tap: LogitsTap | None = None
    """Where an engine in the program's own process leaves logits. Only sim does."""
    parking: ParkingLimits = ParkingLimits()
    token_processes: int = 1
    """Processes that share the engine: `max_sequences` is divided among them."""
    lora_adapters: Sequence[LoraAdapter] = ()
    """What requests may name beside the model; the fingerprint says which they are."""


class Engine(Protocol):
    """An inference engine in one role. All methods are called from the worker's event loop."""

    async def start(self) -> EngineDescription:
        """Load the model and be ready to serve. Raises StartError, which says what to do."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Queue a request without waiting.

        Raises RequestError where it can never run, and ParkingFullError where its KV may not be
        parked now; then no Delta follows.
        """
        ...

    def cancel(self, request_id: int) -> None:
        """End a request soon, with CANCELLED if nothing else ends it first, and free its KV where
        that is parked. Unknown: no effect.
        """
        ...

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        """Give all that happens to `take`, in order, until `close`, without a task that has to be
        woken for it. One consumer at a time.

        Raises EngineError when the engine dies, and what `take` raises.
        """
        ...

    def load(self) -> worker_pb2.Load:
        """How busy the engine is now. Cheap. `step_age_ms` is left out where it cannot be said."""
        ...

    def figures(self) -> EngineFigures:
        """The engine's figures for metrics. Cheap."""
        ...

    async def close(self) -> None:
        """Stop and free everything, in bounded time. May be called at any time, and twice."""
        ...


class JoinedEngine(Engine, Protocol):
    """The engine that another process of the worker has started, for a process that joins it."""

    def lost(self, reason: str) -> None:
        """The engine has died, as its own process says: `steps` raises EngineError."""
        ...


class EngineFollower(Protocol):
    """What an engine computes on a node that does not lead. Called from the worker's event loop."""

    async def start(self) -> int:
        """Join the leader, which may start later, and load this node's share of the model.

        Returns how many of the engine's ranks run here. Raises StartError, which says what to do.
        """
        ...

    async def ended(self) -> None:
        """Wait until the leader closes its engine. Raises EngineError if a part of it dies instead,
        here or on another node."""
        ...

    async def close(self) -> None:
        """Stop and free everything, in bounded time. May be called at any time, and twice."""
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineKit:
    """What the entry point of an engine names. All that it makes is not started yet."""

    create: Callable[[Role, EngineSettings], Engine]
    """Make the whole engine, or where there are several nodes, what leads. Raises StartError."""
    plan_forms: Callable[[EngineSettings], FormPlan]
    """How the engine has forms of answers compiled. Raises ConfigError."""
    follow: Callable[[Role, EngineSettings], EngineFollower] | None = None
    """Make what runs on a node that does not lead. None: the engine computes on one node."""
    join: Callable[[Role, EngineSettings, Awaitable[bytes]], JoinedEngine] | None = None
    """Make the engine of a further token process. None: the engine serves one process."""
    options: Mapping[str, type[Any]] = field(default_factory=dict)
    """The classes of the engine's options, each by what begins the names of its options."""
