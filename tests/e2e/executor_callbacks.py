"""Callbacks in the form of TensorRT-LLM's Executor API, for the workers of test_executor.py."""

from __future__ import annotations

import time
from typing import Any

from tandem.logits.callbacks import batched_callback, callback


@callback
def favour(
    req_id: int, logits: Any, token_ids: list[list[int]], stream_ptr: int | None, client_id: int
) -> None:
    """Make every token the one whose id is the client's."""
    logits[..., client_id] += 1000.0


@callback
def ponder(
    req_id: int, logits: Any, token_ids: list[list[int]], stream_ptr: int | None, client_id: int
) -> None:
    """Take a millisecond for each token, whatever the machine."""
    time.sleep(0.001)


@callback
def count(
    req_id: int, logits: Any, token_ids: list[list[int]], stream_ptr: int | None, client_id: int
) -> Any:
    """Make every token the one whose id is the length so far, by logits of its own."""
    other = logits * 0
    other[..., len(token_ids[0])] = 1.0
    return other


@batched_callback
def favour_all(
    req_ids: list[int],
    logits: list[Any],
    token_ids: list[list[list[int]]],
    stream_ptr: int | None,
    client_ids: list[int],
) -> None:
    """`favour`, for all requests of a step together."""
    for client_id, row in zip(client_ids, logits, strict=True):
        row[..., client_id] += 1000.0
