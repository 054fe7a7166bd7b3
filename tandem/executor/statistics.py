"""What an executor tells of its work, in the names of TensorRT-LLM: values that pickle and compare.
docs/executor/statistics.md says what each holds here.

A field that nobody can measure is None, and is left out of JSON: nothing is 0 for want of a figure.
A part that TensorRT-LLM may lack too is null there, as it writes it. What is always measured is 0
in a value that a program makes itself.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any


@dataclass(slots=True, kw_only=True)
class KvCacheStats:
    """What the KV caches of all decode workers hold, in blocks, as a router last said."""

    max_num_blocks: int | None = None
    free_num_blocks: int | None = None
    used_num_blocks: int | None = None
    tokens_per_block: int | None = None
    alloc_total_blocks: int | None = None
    alloc_new_blocks: int | None = None
    reused_blocks: int | None = None
    missed_blocks: int | None = None
    cache_hit_rate: float | None = None
    """The share of prompt tokens that prefill's cache had, in this executor's requests that have
    ended well.
    """


@dataclass(slots=True, kw_only=True)
class InflightBatchingStats:
    """How far the requests are that have left the executor's queue."""

    num_scheduled_requests: int = 0
    """All of them."""
    num_context_requests: int = 0
    """Those of which nothing has come."""
    num_gen_requests: int = 0
    """Those of which something has."""
    num_paused_requests: int | None = None
    num_ctx_tokens: int | None = None
    micro_batch_id: int | None = None
    avg_num_decoded_tokens_per_iter: float | None = None


@dataclass(slots=True, kw_only=True)
class IterationStats:
    """What the executor was at at one moment."""

    timestamp: str = ""
    """Local time, as "11-22-2026 23:59:07.123456"."""
    iter: int = 0
    """Counts from 1, without a gap, also past what the ring has dropped."""
    iter_latency_ms: float | None = None
    new_active_requests_queue_latency_ms: float = 0.0
    """What the requests that left the queue since the record before had waited in it, together."""
    num_new_active_requests: int = 0
    """How many they are."""
    num_active_requests: int = 0
    """Requests that have left the queue and have not ended."""
    num_queued_requests: int = 0
    """Requests that wait in the executor."""
    num_completed_requests: int = 0
    """Requests that have ended since the record before, by whatever ended them."""
    max_num_active_requests: int = 0
    """`max_open_sequences`: a request is at least one sequence."""
    gpu_mem_usage: int | None = None
    cpu_mem_usage: int | None = None
    pinned_mem_usage: int | None = None
    kv_cache_stats: KvCacheStats | None = None
    cross_kv_cache_stats: None = None
    """Models are decoders alone."""
    static_batching_stats: None = None
    """Nothing runs in static batches."""
    inflight_batching_stats: InflightBatchingStats | None = None
    specdec_stats: None = None
    """Workers do not tell it."""

    def to_json_str(self) -> str:
        """In one line, with TensorRT-LLM's keys."""
        return _to_json(self)


class RequestStage(enum.Enum):
    """How far a request is."""

    QUEUED = 0
    """It waits in the executor."""
    ENCODER_IN_PROGRESS = 1
    """No request is ever in it: models are decoders alone."""
    CONTEXT_IN_PROGRESS = 2
    """It has left the queue, and nothing has come of it."""
    GENERATION_IN_PROGRESS = 3
    GENERATION_COMPLETE = 4
    """It has ended, by whatever ended it."""


@dataclass(slots=True, kw_only=True)
class DisServingRequestStats:
    """What the hand-over of a request's KV cache took, from its prefill worker to its decode
    worker.
    """

    kv_cache_transfer_ms: float = 0.0
    kv_cache_size: int = 0
    """Bytes."""


@dataclass(slots=True, kw_only=True)
class RequestStats:
    """One request in one iteration."""

    id: int = 0
    stage: RequestStage = RequestStage.QUEUED
    context_prefill_position: int | None = None
    """How much of the prompt is read: 0 while it is queued, and all of it once a token came."""
    num_generated_tokens: int = 0
    """Those of all its sequences together."""
    avg_num_decoded_tokens_per_iter: float | None = None
    scheduled: bool = False
    """It has left the queue and has not ended."""
    paused: bool | None = None
    dis_serving_stats: DisServingRequestStats | None = None
    """With GENERATION_COMPLETE, of requests with `return_perf_metrics`."""
    alloc_total_blocks_per_request: int | None = None
    alloc_new_blocks_per_request: int | None = None
    reused_blocks_per_request: int | None = None
    missed_blocks_per_request: int | None = None
    kv_cache_hit_rate_per_request: float | None = None
    """As `dis_serving_stats`."""

    def to_json_str(self) -> str:
        """In one line, with TensorRT-LLM's keys."""
        return _to_json(self)


@dataclass(slots=True, kw_only=True)
class RequestStatsPerIteration:
    """The requests of one iteration: those that were at work, and those that were enqueued or ended
    since the record before.
    """

    iter: int = 0
    """The `iter` of the IterationStats of the same moment."""
    request_stats: list[RequestStats] = field(default_factory=list)

    def to_json_str(self) -> str:
        """In one line, with TensorRT-LLM's keys."""
        return _to_json(self)


@dataclass(slots=True, kw_only=True)
class TimingMetrics:
    """Moments of a request, by the clock of `time.monotonic`."""

    arrival_time: timedelta = timedelta()
    """It was enqueued."""
    first_scheduled_time: timedelta | None = None
    """Its workers began with it; before that it waited here, or for a pair at the router."""
    first_token_time: timedelta | None = None
    """The first token of any of its sequences came."""
    last_token_time: timedelta | None = None
    """The last token of this sequence came."""
    kv_cache_transfer_start: timedelta | None = None
    kv_cache_transfer_end: timedelta | None = None
    """What lies between them was measured by a worker. Where they lie is taken from the first
    token, which follows the hand-over."""
    kv_cache_size: int | None = None
    """Bytes that were handed over."""


@dataclass(slots=True, kw_only=True)
class KvCacheMetrics:
    """What of a request's KV cache was there before."""

    num_total_allocated_blocks: int | None = None
    num_new_allocated_blocks: int | None = None
    num_reused_blocks: int | None = None
    num_missed_blocks: int | None = None
    kv_cache_hit_rate: float | None = None
    """The share of the prompt that prefill's prefix cache had, by tokens."""


@dataclass(slots=True, kw_only=True)
class HookMetrics:
    """What a phase's output hooks made of a sequence's chunks. Tandem's own."""

    phase: str
    """`prefill` or `decode`."""
    worker: str
    """The name of the worker that ran them."""
    emitted: int
    """Chunks that they let through, changed or not."""
    suppressed: int
    terminated: int
    seconds: float
    """What the hooks took for it."""


@dataclass(slots=True, kw_only=True)
class RequestPerfMetrics:
    """Where the time of one sequence of a request went."""

    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    hook_metrics: list[HookMetrics] = field(default_factory=list)
    """A record for each phase that reports, in the order in which the phases ran."""
    speculative_decoding: None = None
    """Workers do not tell it."""
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None


_NULL = ("kv_cache_stats", "static_batching_stats", "inflight_batching_stats", "dis_serving_stats")
"""Parts whose keys TensorRT-LLM writes also where it has none."""


def _to_json(stats: Any) -> str:
    return json.dumps(_plain(stats), separators=(",", ":"))


def _plain(value: Any) -> Any:
    """What JSON takes of a value; fields that are None are left out, but for `_NULL`."""
    if dataclasses.is_dataclass(value):
        given = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        shown = ((name, each) for name, each in given if each is not None or name in _NULL)
        return {_key(name): _plain(each) for name, each in shown}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.name if isinstance(value, enum.Enum) else value


def _key(name: str) -> str:
    """The key of a field: that of `iter_latency_ms` is `iterLatencyMS`."""
    first, *rest = name.split("_")
    return first + "".join("MS" if part == "ms" else part.capitalize() for part in rest)
