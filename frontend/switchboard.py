"""Joins client requests to the stream of sequences: numbers them, submits them, and hands each row
to its request.

Sequence numbers are never reused in the process's life. One that wants token ids has bit 62 set, so
that the columns of a frame can be cut even where rows belong to a request that has gone meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from frontend.exchange import Exchange
from frontend.metrics import Metrics
from frontend.submission import Submission
from tandem import errors
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import columns as wire_columns

log = logging.getLogger(__name__)

_WITH_TOKEN_IDS = 1 << 62
_NO_LOGPROBS: tuple[common_pb2.TokenLogprobs, ...] = ()
_NO_IDS: tuple[int, ...] = ()
_DEADLINE_GRACE_SECONDS = 5.0
"""The router ends a request at its deadline; this long after, the frontend does it without it."""


class Link(Protocol):
    """What the switchboard needs of a RouterLink."""

    @property
    def connected(self) -> bool: ...
    def submit(self, submits: list[router_pb2.Submit]) -> None: ...
    def cancel(self, first_sequences: list[int]) -> None: ...


class Switchboard:
    """All open requests, and what the router last said of the served model."""

    def __init__(
        self, link: Link, metrics: Metrics, *, model: str, tokenizer_sha256: str, max_open: int
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._model = model
        self._tokenizer_sha256 = tokenizer_sha256
        self._max_open = max_open
        self._routes: dict[int, Exchange] = {}
        self._open: set[Exchange] = set()
        self._touched: list[Exchange] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_plain = 1
        self._next_with_ids = _WITH_TOKEN_IDS + 1
        self.served: router_pb2.ServedModel | None = None
        """The served model as the router sees it; None: unknown to it, or with another tokenizer.
        """

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def backlog_bytes(self) -> int:
        return sum(exchange.backlog for exchange in self._open)

    @property
    def ready(self) -> bool:
        """Whether a pair for the served model takes work now."""
        return self._link.connected and self.served is not None and self.served.ready_pairs > 0

    @contextmanager
    def exchange(
        self, submission: Submission, *, backlog_limit: int, abort_client: Callable[[], None]
    ) -> Iterator[Exchange]:
        """Submit a request; leaving cancels whatever of it still runs.

        Raises RefusedError where it cannot be submitted now.
        """
        if len(self._open) >= self._max_open:
            raise errors.QueueFullError("Too many open requests; try again later")
        exchange = Exchange(
            base=self._number(submission),
            prompts=len(submission.prompts),
            n=submission.n,
            backlog_limit=backlog_limit,
            inter_token=self._metrics.inter_token_seconds,
            touched=self._touched,
            release=self._release,
            abort_client=abort_client,
            withheld_reason=submission.withheld_reason,
        )
        self._link.submit(submission.to_submits(exchange.firsts))
        self._open.add(exchange)
        self._idle.clear()
        self._routes.update(dict.fromkeys(exchange.sequences, exchange))
        guard = asyncio.get_running_loop().call_later(
            submission.timeout_seconds + _DEADLINE_GRACE_SECONDS,
            exchange.fail,
            errors.DeadlineError("The request's time ran out"),
        )
        try:
            yield exchange
        finally:
            guard.cancel()
            self._release(exchange)

    async def idle(self) -> None:
        """Until no request is open at the router."""
        await self._idle.wait()

    def fail_all(self, error: errors.TandemError) -> None:
        """End every open request with `error`."""
        for exchange in list(self._open):
            exchange.fail(error)

    # --- what the router says (router_link.Receiver) ---

    def receive(self, message: router_pb2.RouterMessage) -> None:
        if message.payload:
            self._columns(wire_columns.parse(message.payload))
        for end in message.ends:
            self._sequence_end(end)
        for exchange in self._touched:
            exchange.settle()
        self._touched.clear()
        if message.HasField("fleet"):
            self._fleet(message.fleet)

    def lost(self) -> None:
        self.served = None
        self.fail_all(errors.RouterLostError("The stream to the router broke; try again"))

    # --- inside ---

    def _number(self, submission: Submission) -> int:
        """The first of a block of fresh numbers, one for each choice."""
        if submission.want_token_ids:
            base = self._next_with_ids
            self._next_with_ids += submission.choices
        else:
            base = self._next_plain
            self._next_plain += submission.choices
        return base

    def _release(self, exchange: Exchange) -> None:
        """Forget a request, and cancel it at the router unless all of it has ended. May be called
        twice.
        """
        if exchange not in self._open:
            return
        self._open.remove(exchange)
        if not self._open:
            self._idle.set()
        for sequence in exchange.sequences:
            self._routes.pop(sequence, None)
        if exchange.open_choices:
            self._link.cancel(list(exchange.firsts))

    def _columns(self, columns: common_pb2.TokenColumns) -> None:
        """One frame. Counts are added up here, once for all its rows."""
        now = time.monotonic()
        if columns.token_id or columns.logprobs:
            self._rich_rows(columns, now)
        else:
            get = self._routes.get
            for sequence, count, text in zip(
                columns.sequence, columns.token_count, columns.text, strict=True
            ):
                exchange = get(sequence)
                if exchange is not None:
                    exchange.row(sequence, count, text, _NO_IDS, _NO_LOGPROBS, now)
        if columns.token_count:
            self._metrics.completion_tokens.inc(sum(columns.token_count))
        for report in columns.report:
            if exchange := self._routes.get(report.sequence):
                exchange.reports.append(report)
        for finish in columns.finish:
            if exchange := self._routes.get(finish.sequence):
                exchange.finish(finish)
                self._routes.pop(finish.sequence, None)

    def _rich_rows(self, columns: common_pb2.TokenColumns, now: float) -> None:
        """Rows some of which have token ids or log-probabilities."""
        token_ids = list(columns.token_id)
        logprobs: defaultdict[int, deque[common_pb2.TokenLogprobs]] = defaultdict(deque)
        for entry in columns.logprobs:
            logprobs[entry.sequence].append(entry)
        position = 0
        for sequence, count, text in zip(
            columns.sequence, columns.token_count, columns.text, strict=True
        ):
            ids: list[int] | tuple[int, ...] = _NO_IDS
            if sequence & _WITH_TOKEN_IDS:
                ids = token_ids[position : position + count]
                position += count
            entries = _for_row(logprobs[sequence], count) if sequence in logprobs else _NO_LOGPROBS
            exchange = self._routes.get(sequence)
            if exchange is not None:
                exchange.row(sequence, count, text, ids, entries, now)
        if position != len(token_ids):
            raise ValueError("token ids and rows of a frame disagree")

    def _sequence_end(self, end: router_pb2.SequenceEnd) -> None:
        exchange = self._routes.get(end.sequence)
        if exchange is None:
            return
        if end.HasField("error"):
            exchange.fail(errors.from_proto(end.error))
        else:
            self._routes.pop(end.sequence)
            exchange.withhold(end.sequence - exchange.base, end.stop_reason)

    def _fleet(self, fleet: router_pb2.Fleet) -> None:
        served = next((model for model in fleet.models if model.name == self._model), None)
        if served and served.ready_pairs and served.tokenizer_sha256 != self._tokenizer_sha256:
            log.error("the workers of the served model have another tokenizer: it is not served")
            served = None
        self.served = served


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
