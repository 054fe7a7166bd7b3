"""What an executor remembers of its own work until a program reads it: a ring of iterations, and
one of the requests in them. A full ring drops its oldest record.

An iteration is a turn of the backend in which something came, or a request started or ended.
Nothing here is done for a token.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct

from tandem_executor.statistics import (
    DisServingRequestStats,
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestPerfMetrics,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
)
from tandem_executor.unread import Unread


class KvCache(NamedTuple):
    """What the decode workers of the served model say, together."""

    pages: int
    used_pages: int
    page_size: int
    """Tokens to a page; 0: they differ."""


class IterationRecord(Struct, frozen=True, gc=False):
    """An iteration, kept as numbers: `stats` is made by whoever reads it."""

    number: int
    at: float
    """By the clock that the core is told."""
    started: int
    waited_seconds: float
    active: int
    queued: int
    silent: int
    """Active requests of which nothing has come."""
    ended: int
    most_active: int
    kv_cache: KvCache | None
    hit_rate: float | None
    """The share of prompt tokens that was cached; None: no prompt was read."""

    def stats(self, clock_offset: float) -> IterationStats:
        """`clock_offset`: what is added to `at` to have the time since 1970."""
        when = datetime.fromtimestamp(self.at + clock_offset).astimezone()
        return IterationStats(
            timestamp=when.strftime("%m-%d-%Y %H:%M:%S.%f"),
            iter=self.number,
            new_active_requests_queue_latency_ms=self.waited_seconds * 1000,
            num_new_active_requests=self.started,
            num_active_requests=self.active,
            num_queued_requests=self.queued,
            num_completed_requests=self.ended,
            max_num_active_requests=self.most_active,
            kv_cache_stats=self._kv_cache_stats(),
            inflight_batching_stats=InflightBatchingStats(
                num_scheduled_requests=self.active,
                num_context_requests=self.silent,
                num_gen_requests=self.active - self.silent,
            ),
        )

    def _kv_cache_stats(self) -> KvCacheStats | None:
        cache = self.kv_cache
        if cache is None:
            known = self.hit_rate is not None
            return KvCacheStats(cache_hit_rate=self.hit_rate) if known else None
        return KvCacheStats(
            max_num_blocks=cache.pages,
            free_num_blocks=cache.pages - cache.used_pages,
            used_num_blocks=cache.used_pages,
            tokens_per_block=cache.page_size or None,
            cache_hit_rate=self.hit_rate,
        )


class Recorder:
    """The core says what becomes of each request, and when an iteration is over."""

    def __init__(self, *, iterations: int, request_iterations: int, most_active: int) -> None:
        """The first two are how many iterations each ring holds; 0: none."""
        self._iterations: deque[IterationRecord] = deque(maxlen=iterations)
        self._requests: deque[RequestStatsPerIteration] = deque(maxlen=request_iterations)
        self._watches_requests = request_iterations > 0
        self._most_active = most_active
        self._number = 0
        self._active: dict[int, Unread] = {}
        self._changed: dict[int, Unread] = {}
        """Requests that were enqueued or have ended since the last record, where they are watched.
        """
        self._started = self._ended = 0
        """Since the last record."""
        self._arrivals = 0.0
        """When those were enqueued that started, added up."""
        self.kv_cache: KvCache | None = None
        """The KV cache as the router described it last."""
        self._prompt_tokens = self._cached_tokens = 0

    def prompt_read(self, *, tokens: int, cached: int) -> None:
        """A request has ended well: how long its prompt was, and how much of it was cached."""
        self._prompt_tokens += tokens
        self._cached_tokens += cached

    def enqueued(self, request_id: int, unread: Unread) -> None:
        """A request waits in the queue from now on."""
        if self._watches_requests:
            self._changed[request_id] = unread

    def started(self, request_id: int, unread: Unread) -> None:
        """A request has left the queue, and is active."""
        self._active[request_id] = unread
        self._started += 1
        self._arrivals += unread.enqueued_at

    def ended(self, request_id: int, unread: Unread) -> None:
        """A request is over, whether it was active or not."""
        self._active.pop(request_id, None)
        self._ended += 1
        if self._watches_requests:
            self._changed[request_id] = unread

    def record(
        self,
        now: float,
        *,
        came: bool,
        queued: int,
        silent: int,
    ) -> None:
        """An iteration is over, unless nothing `came`, started or ended. `queued` requests wait,
        and of `silent` active ones nothing has come.
        """
        if not (came or self._started or self._ended):
            return
        self._number += 1
        waited = self._started * now - self._arrivals
        read = self._prompt_tokens
        hit_rate = self._cached_tokens / read if read else None
        self._iterations.append(
            IterationRecord(
                self._number, now, self._started, waited, len(self._active), queued, silent,
                self._ended, self._most_active, self.kv_cache, hit_rate,
            )
        )  # fmt: skip
        if self._watches_requests:
            touched = self._changed | self._active
            stats = [self._stats(request_id, touched[request_id]) for request_id in touched]
            self._requests.append(RequestStatsPerIteration(iter=self._number, request_stats=stats))
            self._changed.clear()
        self._started = self._ended = 0
        self._arrivals = 0.0

    def take_iterations(self) -> list[IterationRecord]:
        """The iterations since the last call, the oldest first."""
        found = list(self._iterations)
        self._iterations.clear()
        return found

    def take_requests(self) -> list[RequestStatsPerIteration]:
        """The requests of each iteration since the last call, the oldest first."""
        found = list(self._requests)
        self._requests.clear()
        return found

    def clear(self) -> None:
        """Nothing is read any more."""
        self._iterations.clear()
        self._requests.clear()
        self._active.clear()
        self._changed.clear()

    def _stats(self, request_id: int, unread: Unread) -> RequestStats:
        active = request_id in self._active
        tokens = unread.arrived
        if unread.ended:
            stage = RequestStage.GENERATION_COMPLETE
        elif not active:
            stage = RequestStage.QUEUED
        elif tokens:
            stage = RequestStage.GENERATION_IN_PROGRESS
        else:
            stage = RequestStage.CONTEXT_IN_PROGRESS
        stats = RequestStats(
            id=request_id, stage=stage, num_generated_tokens=tokens, scheduled=active
        )
        if tokens:
            stats.context_prefill_position = unread.prompt_tokens
        elif stage is RequestStage.QUEUED:
            stats.context_prefill_position = 0
        if unread.ended and unread.perf_metrics is not None:
            _add(stats, unread.perf_metrics)
        return stats


def _add(stats: RequestStats, metrics: RequestPerfMetrics) -> None:
    """Add the measurements of an ended request."""
    timing, kv_cache = metrics.timing_metrics, metrics.kv_cache_metrics
    size, begin = timing.kv_cache_size, timing.kv_cache_transfer_start
    if size is not None and begin is not None and timing.kv_cache_transfer_end is not None:
        milliseconds = (timing.kv_cache_transfer_end - begin).total_seconds() * 1000
        stats.dis_serving_stats = DisServingRequestStats(
            kv_cache_transfer_ms=milliseconds, kv_cache_size=size
        )
    stats.kv_cache_hit_rate_per_request = kv_cache.kv_cache_hit_rate
