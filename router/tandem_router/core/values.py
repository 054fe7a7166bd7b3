"""What the router knows of a worker and of its own bounds: plain values."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from tandem.endings import Outcome
from tandem.histogram import Histogram

Disaggregate = Literal["auto", "always", "never"]
"""The way of a sequence where a pair and an aggregated worker are free."""


class Phase(enum.StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Standing(enum.Enum):
    """How far a worker is trusted: trust.py draws what leads from one standing to the next."""

    PROVING = "proving"
    """No KV has moved to or from it since its start: it gets canaries alone."""
    WHOLE = "whole"
    SUSPECT = "suspect"
    """A client's hand-over failed there: it gets as much as before, and canaries."""
    EJECTED = "ejected"
    """The worker gets nothing new until its time is over."""
    PROBATION = "probation"
    """The worker gets one leg at a time, until a few have ended well."""


class Way(enum.StrEnum):
    PAIR = "pair"
    AGGREGATED = "aggregated"


class Reason(enum.StrEnum):
    """Why a sequence went that way."""

    ONLY = "only"
    """The other way has no free worker that can run it."""
    SOUND = "sound"
    """More speaks against the other way's workers: overdue legs, or earlier failures."""
    SETTING = "setting"
    """`disaggregate` says so."""
    MEASURE = "measure"
    """No sequence has gone that way lately, so its speed is not known."""
    UNMEASURED = "unmeasured"
    """What the other way takes, or this one, is not known yet."""
    EARLIEST = "earliest"
    """The way's finish is predicted earlier."""


class Edition(NamedTuple):
    """A model with one tokenizer: what a prompt's token ids mean. A request belongs to one, and
    runs on no worker of another.
    """

    model: str
    tokenizer_sha256: str


class Fingerprint(NamedTuple):
    """What two workers must have in common before a pair is made of them: every field, equal.

    One request to a mismatched pair takes a SGLang decode worker down. The fields are those of
    tandem.v1.Fingerprint, and what a newer worker says beyond them.
    """

    model: str
    revision: str
    engine: str
    engine_version: str
    dtype: str
    page_size: int
    kv_dtype: str
    kv_layout: str
    tensor_parallel: int
    """Ranks among which prefill divides a sequence's KV."""
    tokenizer_sha256: str
    protocol_version: int
    deployment_revision: str = ""
    aggregated: bool = False
    """Whether the engine serves both phases, which have the same instance: neither pairs with
    another.
    """
    decode_tensor_parallel: int = 0
    """Decode's ranks, where prefill has another number of ranks."""
    pipeline_parallel: int = 0
    """Pipeline parts of prefill, each with some of the layers; 0: one part has every layer."""
    lora_sha256: str = ""
    kv_transfer: str = ""
    """The library that hands KV over; empty: NIXL."""
    kv_beside: str = ""
    """What is handed over beside the model's own KV, in words: a draft's."""
    unknown_fields: bytes = b""
    """Fields of a newer tandem.v1.Fingerprint, as they came: equal as a whole, or no pair."""

    @property
    def edition(self) -> Edition:
        return Edition(self.model, self.tokenizer_sha256)

    def difference(self, other: Fingerprint) -> str | None:
        """The name of the first field that differs."""
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine != theirs:
                return name
        return None


@dataclass(slots=True, frozen=True, kw_only=True)
class Profile:
    """A worker, as it describes itself."""

    name: str
    instance: str = ""
    """Unique for each start of its process; the phases of an aggregated worker have the same."""
    phase: Phase
    fingerprint: Fingerprint
    max_sequences: int
    """Legs open at once; never exceeded."""
    context_length: int
    """Tokens, prompt and completion together."""
    vocabulary: int = 0
    kv_endpoint: str = ""
    has_hook: bool = False
    propagate_terminate: bool = False
    logits_processors: frozenset[str] = frozenset()
    lora_adapters: frozenset[str] = frozenset()
    cannot_sample: frozenset[str] = frozenset()
    """Sampling parameters that its engine refuses."""
    keeps_tasks: bool = False
    """A task that several legs run need be said to it only once."""
    parks: bool = False
    """Prefill: it can keep KV for a request to come."""
    has_classifiers: bool = False
    """Decode: they judge its output, as no prefill worker can. `has_hook` holds as well."""
    may_judge: bool = False
    """Decode: it has classifiers, or may get some while it runs. Older workers do not say so."""
    judges_logprobs: bool = False
    """Decode: its classifiers are given log-probabilities, which both legs' engines are to say."""
    draining: bool = False
    moved_kv: bool = True
    """KV has moved to or from it since its start, or it takes no canaries."""


class Needs(NamedTuple):
    """What a request asks of the workers that run it, beside its edition."""

    tokens: int = 0
    """Tokens of prompt and completion together; 0: not known."""
    logits_processors: frozenset[str] = frozenset()
    lora_adapter: str = ""
    """Empty: the model alone."""
    sampling: frozenset[str] = frozenset()
    """The sampling parameters used of those that an engine may refuse."""


NOTHING: Final = Needs()
MOST_MS: Final = 2**32 - 1
"""The longest time that a message can say, in milliseconds."""
MOST_TOKENS: Final = 2**32 - 1
"""The most tokens that a message can say."""


class Offer(NamedTuple):
    """What every worker of a group can take."""

    context_length: int
    logits_processors: frozenset[str]
    lora_adapters: frozenset[str] = frozenset()
    cannot_sample: frozenset[str] = frozenset()
    """Sampling parameters that some worker of the group refuses."""

    def meets(self, needs: Needs) -> bool:
        return (
            needs.tokens <= self.context_length
            and needs.logits_processors <= self.logits_processors
            and needs.sampling.isdisjoint(self.cannot_sample)
            and self.adapts(needs)
        )

    def adapts(self, needs: Needs) -> bool:
        """Whether they have the adapter."""
        return not needs.lora_adapter or needs.lora_adapter in self.lora_adapters


@dataclass(slots=True, frozen=True, kw_only=True)
class Bounds:
    """The core's limits, durations in seconds: the router's settings of the same names, which say
    what each one bounds (config.py).
    """

    max_queue: int = 1024
    max_fanout_bytes: int = 256 * 1024 * 1024
    max_retries: int = 1
    max_regenerations: int = 3
    """No setting: further runs of one sequence that classifiers block; workers' settings say fewer.
    """
    settle_seconds: float = 10.0
    pair_wait_seconds: float = 10.0
    pair_memory_seconds: float = 600.0
    expected_models: frozenset[str] = frozenset()
    stall_seconds: float = 10.0
    stall_failover_seconds: float = 30.0
    eject_after_faults: int = 3
    eject_seconds: float = 60.0
    eject_after_failures: int = 5
    eject_ratio: float = 0.3
    eject_first_seconds: float = 10.0
    eject_most_share: float = 0.5
    canary_seconds: float = 330.0


QUEUE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Counts:
    """What the core has done since its start, for metrics."""

    requests: Counter[str] = field(default_factory=Counter)
    """By outcome: finished, terminated, or an error's code."""
    legs: Counter[tuple[Phase, Outcome]] = field(default_factory=Counter)
    cancels: Counter[str] = field(default_factory=Counter)
    """Cancelled legs by reason: an outcome or an error's code."""
    pairs_rejected: Counter[str] = field(default_factory=Counter)
    """By the first fingerprint field that differs, or "phase" or "limits"."""
    canaries: Counter[str] = field(default_factory=Counter)
    """Canaries by outcome; no other counter counts canaries."""
    ways: Counter[tuple[Way, Reason]] = field(default_factory=Counter)
    """Sequences that were started in both phases, by ways.Way and ways.Reason."""
    resumed: Counter[str] = field(default_factory=Counter)
    """Resumable sequences that lost their decode worker, by how the resumption ended."""
    prompt_tokens: int = 0
    """Prompt tokens of prefill legs, but for canaries'."""
    cached_tokens: int = 0
    """Prompt tokens that the workers' caches were thought to hold at the choice."""
    lost_hit_tokens: int = 0
    """Prompt tokens that a cache would have had, if the prompts of their session did not differ at
    the same early place each time: see lost_hits.py.
    """
    retries: int = 0
    requeued: int = 0
    """Sequences that wait again because a worker was full, or shut down, before it began."""
    settle_overdue: int = 0
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(QUEUE_SECONDS))
