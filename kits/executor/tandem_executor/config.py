"""How an executor is set up."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from tandem import ranges
from tandem.errors import ConfigError
from tandem.keys import MAX_NAME, MAX_WEIGHT
from tandem.ranges import Range, ranged
from tandem.wire import tls
from tandem_executor.left_out import UNUSED, refuse, refuses_left_out
from tandem_executor.workers_own import KvCacheConfig, PeftCacheConfig, SchedulerConfig

MOST_SECONDS = 2**31
"""The longest time that a timer takes."""
_TIMES = Range(above=0, at_most=MOST_SECONDS)


class BatchingType(enum.Enum):
    """Who runs together. Workers let requests join and leave at every step."""

    STATIC = 0
    INFLIGHT = 1


@dataclass(slots=True)
class LogitsPostProcessorConfig:
    """Functions that edit logits, for engines in the program's own process. Their form is that of
    tandem.logits.callbacks.
    """

    processor_map: Mapping[str, Callable[..., Any]] | None = None
    """By the name by which requests ask for them."""
    processor_batched: Callable[..., Any] | None = None
    """One for all requests of a step that ask for `Request.BATCHED_POST_PROCESSOR_NAME`."""
    replicate: bool = True
    """Taken and never needed: one process computes."""


@refuses_left_out
@dataclass(slots=True)
class ExecutorConfig:
    """The first five are TensorRT-LLM's, as are those from `logits_post_processor_config` on;
    the rest are Tandem's own. Fields from `disaggregated` on are for the engines of a model's
    folder. A configuration may be changed until an executor is made, which checks it once more.
    """

    max_beam_width: int = 1
    _: KW_ONLY
    batching_type: BatchingType = BatchingType.INFLIGHT
    max_queue_size: int = ranged(65_536, Range(at_least=1))
    """Requests that may wait here or at the router; one more is refused with FullError."""
    iter_stats_max_iterations: int = ranged(1000, Range(at_least=0))
    """IterationStats that are kept until they are read, the latest; 0: none are."""
    request_stats_max_iterations: int = ranged(0, Range(at_least=0))
    """RequestStatsPerIteration that are kept, each of which costs a pass over all open requests."""
    model: str = ""
    """The model that requests are for; empty: the only one that the router serves."""
    max_open_sequences: int = ranged(512, Range(at_least=1))
    """Sequences at the router at once. Others wait here, by priority: keep the number below the
    router's `max_queue`."""
    max_unread_tokens: int = ranged(1_000_000, Range(at_least=1))
    """Tokens of responses that nobody has awaited yet, all that open requests may still bring
    counted in. A request that could bring more waits until others have been read."""
    max_logits_rows: int = ranged(2048, Range(at_least=1))
    """Rows of logits, one for each position, of requests that asked for them and were not read to
    their end. A row takes four bytes for each token of the vocabulary."""
    request_timeout_seconds: float = ranged(600.0, _TIMES)
    """The time of a request without `allotted_time_ms`."""
    router_wait_seconds: float = ranged(10.0, _TIMES)
    """Time a request waits while no router takes it, within its deadline."""
    resume: bool = False
    """Another pair of workers goes on with a request whose decode worker was lost, where one can;
    of a router elsewhere alone."""
    tls_cert: str = ""
    """PEM file of a frontend's certificate: for the router an executor is one. Goes with tls_key
    and tls_ca; without all three gRPC is plaintext."""
    tls_key: str = ""
    tls_ca: str = ""
    tls_peer_name: str = "tandem"
    tenant: str = ""
    """Whose requests these are, as a key's name: routers share pairs between tenants, and audit
    logs name them."""
    weight: int = ranged(1, Range(at_least=1, at_most=MAX_WEIGHT))
    """How much the tenant gets beside others."""
    disaggregated: bool = False
    """An engine for each phase, and a hand-over between them; False: one for both."""
    engine: Literal["sim", "sglang"] = "sglang"
    engine_options: Mapping[str, Any] | None = None
    """Options of the engine itself, as workers have them."""
    worker_settings: Mapping[str, Any] | None = None
    """What else the workers of both phases are set to, as their settings file writes it: hooks,
    classifiers, logits_processors and more."""
    logits_post_processor_config: LogitsPostProcessorConfig | None = None

    # TensorRT-LLM's, which change nothing here: left_out.UNUSED says why of each.
    scheduler_config: Any = field(default_factory=SchedulerConfig)
    kv_cache_config: Any = field(default_factory=KvCacheConfig)
    enable_chunked_context: bool = False
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    parallel_config: Any = None
    peft_cache_config: Any = field(default_factory=PeftCacheConfig)
    use_gpu_direct_storage: bool = False
    gpu_weights_percent: float | None = None
    extended_runtime_perf_knob_config: Any = None
    debug_config: Any = None
    recv_poll_period_ms: int | None = None
    max_seq_idle_microseconds: int | None = None
    cache_transceiver_config: Any = None
    gather_generation_logits: bool = False
    fail_fast_on_attention_window_too_large: bool = False
    enable_trt_overlap: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve, and UnsupportedError for one that is
        not offered.
        """
        if self.batching_type is not BatchingType.INFLIGHT:
            refuse("BatchingType.STATIC", "workers let requests join and leave at every step")
        if self.max_beam_width != 1:
            refuse("max_beam_width above 1", "beams are not searched")
        ranges.check(self)
        if len(self.tenant) > MAX_NAME:
            raise ConfigError(f"tenant has at most {MAX_NAME} characters")
        tls.check(self)


def checked_copy(given: ExecutorConfig | None) -> ExecutorConfig:
    """A copy that no program changes any more; the default for None. Warns of what it has that
    changes nothing. Raises as the constructor does, for what was assigned since, and ConfigError
    for what is no configuration.
    """
    if given is None:
        return ExecutorConfig()
    if not isinstance(given, ExecutorConfig):
        raise ConfigError(
            f"an executor takes an ExecutorConfig, not {type(given).__name__}: it runs a model's"
            " folder or asks a router, and takes no buffers of an engine"
        )
    unset = ExecutorConfig()
    for name, reason in UNUSED.items():
        if getattr(given, name) not in (None, False, getattr(unset, name)):
            warnings.warn(f"ExecutorConfig.{name} changes nothing here: {reason}", stacklevel=4)
    return replace(given)
