"""Cuts a frame's columns into rows, and hands each to the request whose sequence it is of.

A sequence that wants token ids has bit 62 set, so that the columns can be cut even where rows
belong to a request that has gone meanwhile. A row that is not its sequence's next one ends that
request: what is missing would be passed over in silence.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence, Set

from msgspec import Struct, field

from tandem.errors import WorkerError
from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2
from tandem.wire.frames import MOST_ROW_TOKENS, Row

WITH_TOKEN_IDS = 1 << 62
GAP = "a row is missing or comes again"
HUGE = "a number that cannot be"
NOT_WHOLE = "log-probabilities of a part of the tokens"
_NO_LOGPROBS: tuple[common_pb2.TokenLogprobs, ...] = ()
_NO_IDS: tuple[int, ...] = ()
_NONE: Set[int] = frozenset()


class HandedOut(Struct):
    tokens: int = 0
    faults: dict[int, str] = field(default_factory=dict)
    """What was wrong, by sequence; their requests have failed."""
    strays: set[int] = field(default_factory=set)
    """Sequences that `routes` does not have."""


def unreadable() -> WorkerError:
    """What a request ends with, part of whose output is lost."""
    return WorkerError("A worker's output cannot be read; try again")


def hand_out(
    columns: common_pb2.TokenColumns, routes: Mapping[int, RequestState], now: float
) -> HandedOut:
    """Give every row to the request that `routes` has for its sequence; others are dropped. A
    request fails with the first of its rows that cannot be.

    Raises ValueError where the columns disagree, before any row is handed out: a text that is
    missing would give each of those after it to its neighbour's client.
    """
    sequences, offsets = columns.sequence[:], columns.offset[:]
    counts, texts = columns.token_count[:], columns.text[:]
    if not len(sequences) == len(counts) == len(texts) == len(offsets):
        raise ValueError("the columns of a frame differ in length")
    out = HandedOut(sum(counts))
    rows = zip(sequences, offsets, counts, texts, strict=True)
    token_ids, logprobs = columns.token_id[:], columns.logprobs
    rich = token_ids or logprobs or max(sequences, default=0) >= WITH_TOKEN_IDS
    if rich or out.tokens > MOST_ROW_TOKENS:
        _hand_out_rich([*rows], token_ids, logprobs[:] if logprobs else (), routes, now, out)
        return out
    more = _with_more(columns, sequences)
    get = routes.get
    for sequence, offset, count, text in rows:
        state = get(sequence)
        if state is None:
            out.strays.add(sequence)
        elif not state.row(sequence, offset, count, text, now, sequence not in more):
            _spoil(state, sequence, GAP, out)
    return out


def _with_more(columns: common_pb2.TokenColumns, sequences: Sequence[int]) -> Set[int]:
    """The sequences of which a frame has more than one row, or may have."""
    rows = set(sequences)
    if len(rows) < len(sequences):
        return rows
    return {finish.sequence for finish in columns.finish[:]} if columns.finish else _NONE


def _hand_out_rich(
    rows: Sequence[Row],
    token_ids: Sequence[int],
    given: Sequence[common_pb2.TokenLogprobs],
    routes: Mapping[int, RequestState],
    now: float,
    out: HandedOut,
) -> None:
    """Rows some of which have token ids or log-probabilities, or too many tokens."""
    if sum([count for sequence, _, count, _ in rows if sequence & WITH_TOKEN_IDS]) != len(
        token_ids
    ):
        raise ValueError("token ids and rows of a frame disagree")
    logprobs: defaultdict[int, deque[common_pb2.TokenLogprobs]] = defaultdict(deque)
    for entry in given:
        logprobs[entry.sequence].append(entry)
    position = tokens = 0
    for sequence, offset, count, text in rows:
        ids: Sequence[int] = _NO_IDS
        if sequence & WITH_TOKEN_IDS:
            ids = token_ids[position : position + count]
            position += count
        entries = _for_row(logprobs[sequence], count) if sequence in logprobs else _NO_LOGPROBS
        state = routes.get(sequence)
        if state is None:
            out.strays.add(sequence)
        elif count > MOST_ROW_TOKENS:
            _spoil(state, sequence, HUGE, out)
        elif entries and not all(map(_is_whole, entries)):
            _spoil(state, sequence, NOT_WHOLE, out)
        elif not state.row(sequence, offset, count, text, now, False, ids, entries):
            _spoil(state, sequence, GAP, out)
        if count <= MOST_ROW_TOKENS:
            tokens += count
    out.tokens = tokens


def hand_out_prompt(part: common_pb2.TokenLogprobs, routes: Mapping[int, RequestState]) -> str:
    """Give a part of a prompt's log-probabilities to its request. It is prefill's, so `routes` has
    all sequences that are open, and one that cannot be is left out: it may be of somebody else. A
    request that misses one fails with its end. Returns what was wrong.
    """
    state = routes.get(part.sequence)
    if state is None:
        return ""
    if not part.HasField("place") or len(part.token_id) > MOST_ROW_TOKENS:
        return HUGE
    if not _is_whole(part):
        return NOT_WHOLE
    return "" if state.prompt_part(part) else GAP


def _spoil(state: RequestState, sequence: int, fault: str, out: HandedOut) -> None:
    out.faults[sequence] = fault
    state.fail(unreadable())


def _is_whole(entry: common_pb2.TokenLogprobs) -> bool:
    """Whether every token has its log-probability."""
    alternatives = len(entry.top_token_id) == len(entry.top_logprob)
    return alternatives and len(entry.token_id) == len(entry.logprob)


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
