"""Where open requests are: by the newest stream whose router takes them or, while there is none, in
a bounded wait for one.

What goes by a stream is a submit, of one prompt; after a hand-over the prompts of one request may
be by several. docs/design/0011-handing-over-between-routers.md says what is sent again, and why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from frontend.http.connection import Connection
from frontend.upstream.request_state import RequestState
from frontend.upstream.router_metrics import RouterMetrics
from frontend.upstream.router_stream import RouterStream
from frontend.upstream.submission import Submission
from tandem.errors import (
    CancelledError,
    DeadlineError,
    NoPairError,
    QueueFullError,
    RefusedError,
    RouterLostError,
)


@dataclass(slots=True)
class _Placed:
    submission: Submission
    parent_span: int
    deadline: float
    waiting: list[int] = field(default_factory=list)
    """First sequences of the submits that wait for a stream."""
    patience: asyncio.TimerHandle | None = None
    """Ends the wait."""


class Dispatcher:
    """Knows every open request, and every stream by which one may be open."""

    def __init__(self, metrics: RouterMetrics, *, wait_seconds: float, max_open: int) -> None:
        self._metrics = metrics
        self._wait_seconds = wait_seconds
        self._max_open = max_open
        self._first_pair = asyncio.get_running_loop().create_future()
        """Done once some router has had a pair."""
        self._early = 0
        """Requests that wait for that; no limits are known by which to check them."""
        self._placed: dict[RequestState, _Placed] = {}
        self._waiting: dict[RequestState, None] = {}
        """In the order of their arrival."""
        self._streams: list[RouterStream] = []
        self._current: RouterStream | None = None
        metrics.watch_waiting(lambda: self._early + len(self._waiting))

    @property
    def stream(self) -> RouterStream | None:
        """By which new requests go now."""
        current = self._current
        return None if current is None or current.draining else current

    @property
    def newest(self) -> RouterStream | None:
        """The last that was opened; it is not used before its router has a pair."""
        return self._streams[-1] if self._streams else None

    # --- requests ---

    async def first_pair(self, connection: Connection, within_seconds: float) -> None:
        """Until some router has had a pair: in a process's first moments only.

        Raises RefusedError where too many wait, or for too long, and CancelledError once the client
        has gone.
        """
        if self._first_pair.done():
            return
        if self._early >= self._max_open:
            raise QueueFullError("Too many open requests; try again later")
        gone = asyncio.get_running_loop().create_future()
        connection.watch(on_lost=gone.cancel, on_stall=gone.cancel)
        seconds = min(self._wait_seconds, within_seconds)
        self._early += 1
        try:
            await asyncio.wait(
                (self._first_pair, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._early -= 1
        if gone.cancelled():
            raise CancelledError("The client went away")
        if not self._first_pair.done():
            raise self._unavailable()

    def add(self, state: RequestState, submission: Submission, *, parent_span: int) -> None:
        """Submit a request. Raises QueueFullError while its stream is clogged."""
        deadline = time.monotonic() + submission.timeout_seconds
        placed = self._placed[state] = _Placed(submission, parent_span, deadline)
        stream = self.stream
        if stream is None:
            self._wait(state, placed, state.firsts)
        else:
            stream.submit(submission.to_submits(state.firsts, parent_span=parent_span))

    def submit_again(self, state: RequestState, firsts: Sequence[int]) -> None:
        """Submits that no router has taken."""
        self._metrics.resubmitted.inc(len(firsts))
        placed = self._placed[state]
        self._wait(state, placed, firsts)
        if self.stream is not None:
            self._send(self.stream, state, placed)

    def remove(self, state: RequestState) -> None:
        """Forget a request. What of it has not ended is cancelled."""
        placed = self._placed.pop(state, None)
        if placed is None:
            return
        self._end_wait(state, placed)
        for stream in self._streams:
            stream.release(state.firsts, cancel=state.open_choices > 0)

    # --- streams ---

    def opened(self, stream: RouterStream) -> None:
        self._streams.append(stream)

    def use(self, stream: RouterStream) -> None:
        """Its router has a pair: send by it what waits, and what is new."""
        self._current = stream
        if not self._first_pair.done():
            self._first_pair.set_result(None)
        for state in list(self._waiting):
            self._send(stream, state, self._placed[state])

    def ended(self, stream: RouterStream) -> None:
        self._streams.remove(stream)
        if self._current is stream:
            self._current = None

    # --- inside ---

    def _unavailable(self) -> RefusedError:
        """Why one waited in vain."""
        if self.newest is None or self.newest.draining:
            return RouterLostError("The router is not reachable; try again")
        return NoPairError("No prefill and decode worker for the model are ready")

    def _wait(self, state: RequestState, placed: _Placed, firsts: Sequence[int]) -> None:
        placed.waiting += firsts
        self._waiting[state] = None
        if placed.patience is None:
            left = placed.deadline - time.monotonic()
            placed.patience = asyncio.get_running_loop().call_later(
                min(self._wait_seconds, left), self._give_up, state, left < self._wait_seconds
            )

    def _give_up(self, state: RequestState, overdue: bool) -> None:
        timed_out = DeadlineError("The request's time ran out while no router took it")
        state.fail(timed_out if overdue else self._unavailable())

    def _end_wait(self, state: RequestState, placed: _Placed) -> None:
        self._waiting.pop(state, None)
        placed.waiting = []
        if placed.patience is not None:
            placed.patience.cancel()
            placed.patience = None

    def _send(self, stream: RouterStream, state: RequestState, placed: _Placed) -> None:
        """What waits of a request, with the time that is left of it."""
        left = max(0.0, placed.deadline - time.monotonic())
        submits = replace(placed.submission, timeout_seconds=left).to_submits(
            state.firsts, parent_span=placed.parent_span
        )
        chosen = [submit for submit in submits if submit.first_sequence in placed.waiting]
        self._end_wait(state, placed)
        try:
            stream.submit(chosen)
        except QueueFullError as error:
            state.fail(error)
