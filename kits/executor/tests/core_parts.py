"""A small core, and requests for it."""

from __future__ import annotations

from typing import Any

from tandem_executor.core import Enqueued, ExecutorCore
from tandem_executor.requests import Request, SamplingConfig
from tandem_executor.responses import FinishReason
from tandem_executor.unread import CompletedSequence

MOST_SEQUENCES, MOST_UNREAD, MOST_QUEUE = 4, 24, 8
LENGTH = CompletedSequence(FinishReason.LENGTH)
SECONDS = 100.0


def core(**changes: int) -> ExecutorCore:
    bounds = {
        "max_queue_size": MOST_QUEUE,
        "max_open_sequences": MOST_SEQUENCES,
        "max_unread_tokens": MOST_UNREAD,
    }
    return ExecutorCore(**bounds | changes)


def wake(executor: ExecutorCore) -> None:
    """Do what a backend does at the end of its turn."""
    for waiter in executor.wakes():
        waiter.wake()


def asked(*, n: int = 1, max_tokens: int = 4, seconds: float = SECONDS, **fields: Any) -> Enqueued:
    sampling = SamplingConfig(num_return_sequences=n)
    request = Request([7, 8], max_tokens=max_tokens, sampling_config=sampling, **fields)
    return Enqueued(request, None, n, n * max_tokens, seconds)
