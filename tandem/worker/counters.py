"""What a worker counts while it works. Plain numbers, added up for each step; metrics.py reads them
when they are scraped.
"""

from __future__ import annotations

from collections import defaultdict

from tandem.endings import OUTCOME_TO_WIRE, Outcome
from tandem.engine.base import KvTransfer
from tandem.errors import CODES, TandemError
from tandem.histogram import Histogram
from tandem.metrics import REQUEST_SECONDS, STEP_SECONDS
from tandem.tracing.exemplars import Exemplars
from tandem.worker.core.leg import Closing


class TransferCounters:
    """The hand-overs that one transport made."""

    __slots__ = ("bytes", "exemplars", "seconds")

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = Histogram(STEP_SECONDS)
        self.exemplars = Exemplars(STEP_SECONDS)


class WorkerCounters:
    """The counters of one worker since its start."""

    def __init__(self) -> None:
        self.legs = dict.fromkeys(OUTCOME_TO_WIRE, 0)
        self.failures = dict.fromkeys(CODES, 0)
        """Failed legs by their error's code; those that were refused count too."""
        self.leg_seconds = Histogram(REQUEST_SECONDS)
        self.intake_seconds = 0.0
        """CPU time in which tasks were read, and made into requests of the engine."""
        self.submit_seconds = 0.0
        """CPU time in which the engine was given requests."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens whose KV the engine had already."""
        self.tokens = 0
        self.steps = Histogram(STEP_SECONDS)
        self.transfers = defaultdict(TransferCounters, {"nixl/ucx/unknown": TransferCounters()})

    def took_in(self, seconds: float) -> None:
        """CPU time in which the task of a leg was read, or a request made of the task."""
        self.intake_seconds += seconds

    def step(self, tokens: int, seconds: float) -> None:
        """One engine step, and the time the worker took for it."""
        self.tokens += tokens
        self.steps.observe(seconds)

    def kv(self, transfer: KvTransfer, *, trace_id: str = "") -> None:
        """`trace_id`: of a request that is traced."""
        counters = self.transfers[transfer.transport]
        counters.bytes += transfer.bytes
        counters.seconds.observe(transfer.seconds)
        if trace_id:
            counters.exemplars.keep(transfer.seconds, trace_id)

    def closed(self, closing: Closing) -> None:
        """A leg that ran has ended."""
        self.legs[closing.outcome] += 1
        if closing.error is not None:
            self._failed(closing.error)

    def refused(self, error: TandemError) -> None:
        """A leg did not begin."""
        self.legs[Outcome.FAILED] += 1
        self._failed(error)

    def _failed(self, error: TandemError) -> None:
        self.failures[error.code] = self.failures.get(error.code, 0) + 1

    def ran(self, *, seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        """How long a leg ran, and what its prompt came to."""
        self.leg_seconds.observe(seconds)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
