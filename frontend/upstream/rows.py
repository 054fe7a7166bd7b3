"""Cuts a frame's columns into rows, and hands each to the request whose sequence it is of.

A sequence that wants token ids has bit 62 set, so that the columns can be cut even where rows
belong to a request that has gone meanwhile.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from frontend.upstream.request_state import RequestState
from tandem.v1 import common_pb2

WITH_TOKEN_IDS = 1 << 62
_NO_LOGPROBS: tuple[common_pb2.TokenLogprobs, ...] = ()
_NO_IDS: tuple[int, ...] = ()


def hand_out(
    columns: common_pb2.TokenColumns, routes: Mapping[int, RequestState], now: float
) -> None:
    """Give every row to the request that `routes` has for its sequence; others are dropped.

    Raises ValueError where the columns disagree, before any row is handed out: a text that is
    missing would give each of those after it to its neighbour's client.
    """
    sequences, counts, texts = columns.sequence, columns.token_count, columns.text
    if not len(sequences) == len(counts) == len(texts):
        raise ValueError("the columns of a frame differ in length")
    if columns.token_id or columns.logprobs or max(sequences, default=0) >= WITH_TOKEN_IDS:
        _hand_out_rich(columns, routes, now)
        return
    get = routes.get
    for sequence, count, text in zip(sequences, counts, texts, strict=True):
        state = get(sequence)
        if state is not None:
            state.row(sequence, count, text, _NO_IDS, _NO_LOGPROBS, now)


def _hand_out_rich(
    columns: common_pb2.TokenColumns, routes: Mapping[int, RequestState], now: float
) -> None:
    """Rows some of which have token ids or log-probabilities."""
    with_ids = (
        count
        for sequence, count in zip(columns.sequence, columns.token_count, strict=True)
        if sequence & WITH_TOKEN_IDS
    )
    token_ids = list(columns.token_id)
    if sum(with_ids) != len(token_ids):
        raise ValueError("token ids and rows of a frame disagree")
    logprobs: defaultdict[int, deque[common_pb2.TokenLogprobs]] = defaultdict(deque)
    for entry in columns.logprobs:
        logprobs[entry.sequence].append(entry)
    position = 0
    for sequence, count, text in zip(
        columns.sequence, columns.token_count, columns.text, strict=True
    ):
        ids: Sequence[int] = _NO_IDS
        if sequence & WITH_TOKEN_IDS:
            ids = token_ids[position : position + count]
            position += count
        entries = _for_row(logprobs[sequence], count) if sequence in logprobs else _NO_LOGPROBS
        state = routes.get(sequence)
        if state is not None:
            state.row(sequence, count, text, ids, entries, now)


def _for_row(
    entries: deque[common_pb2.TokenLogprobs], count: int
) -> tuple[common_pb2.TokenLogprobs, ...]:
    """The next entries that together hold a row's `count` tokens."""
    taken = []
    while entries and count > 0:
        entry = entries.popleft()
        taken.append(entry)
        count -= len(entry.token_id)
    return tuple(taken)
