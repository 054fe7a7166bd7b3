"""Sends requests by the streams whose routers take them or, while there is none, lets them wait for
one, within bounds. Which of several a request goes by is choice.py's.

What goes by a stream is a submit, of one prompt; after a hand-over the prompts of one request may
be by several. docs/design/0011-handing-over-between-routers.md says what is sent again, and why.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from operator import attrgetter

from tandem.errors import (
    CancelledError,
    DeadlineError,
    InternalError,
    NoPairError,
    QueueFullError,
    RefusedError,
    RouterLostError,
    TandemError,
)
from tandem.upstream.answer import RequestClient
from tandem.upstream.choice import Draw, RouterChoice
from tandem.upstream.metrics import Missing, UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream

log = logging.getLogger(__name__)
FIRST_BATCH = 128
"""Prompts of those that wait which are sent at once, when a router takes requests again."""
LEAST_BATCH = 8
"""However many are refused."""
BATCH_SECONDS = 0.05
"""From one batch to the next, which is twice as large, or half where room was wanting."""
_TURN = attrgetter("dispatch.turn")


class Dispatcher:
    """Knows the streams by which one model's requests go, and the requests that wait."""

    def __init__(
        self,
        metrics: UpstreamMetrics,
        model: str,
        *,
        wait_seconds: float,
        max_open: int,
        clock: Callable[[], float],
        draw: Draw,
    ) -> None:
        self._choice = RouterChoice(model, draw)
        self._model = model
        self._metrics = metrics
        self._wait_seconds = wait_seconds
        self._max_open = max_open
        self._clock = clock
        self._first_pair = asyncio.get_running_loop().create_future()
        """Done once some router has had a pair."""
        self.early = 0
        """Requests that wait for that; no limits are known by which to check them."""
        self._waiting: list[RequestState] = []
        """In the order of their arrival."""
        self._turns = itertools.count(1)
        self._batch = FIRST_BATCH
        self._has_room = True
        """Nothing of the last batch was refused for want of room."""
        self._next_batch: asyncio.TimerHandle | None = None
        self._streams: list[RouterStream] = []
        self._used: list[RouterStream] = []
        """Streams whose router has a pair of the model, or has had one."""

    @property
    def in_use(self) -> list[RouterStream]:
        """Streams by which new requests go now."""
        return [each for each in self._used if not each.draining]

    @property
    def expects_pair(self) -> bool:
        """Whether some router is set to expect workers of the model."""
        return any(each.view_of(self._model).expects for each in self._open_streams)

    @property
    def _open_streams(self) -> list[RouterStream]:
        return [each for each in self._streams if not each.draining]

    @property
    def _patience(self) -> float:
        """Seconds that a request may wait for a router, or for a router's first pair."""
        views = [each.view_of(self._model) for each in self._open_streams]
        waits = [each.pair_wait_seconds for each in views]
        return max(self._wait_seconds, *waits, 0.0)

    # --- requests ---

    async def first_pair(self, client: RequestClient, within_seconds: float) -> None:
        """Until some router has had a pair: in a process's first moments only.

        Raises RefusedError where too many wait, or for too long, and CancelledError once the client
        has gone.
        """
        if self._first_pair.done():
            return
        if self.early >= self._max_open:
            raise QueueFullError("Too many open requests; try again later")
        gone = asyncio.get_running_loop().create_future()
        client.watch(on_lost=gone.cancel, on_stall=gone.cancel)
        since = self._clock()
        self.early += 1
        try:
            while not (self._first_pair.done() or gone.done()):
                left = min(self._patience, within_seconds) - (self._clock() - since)
                if left <= 0:
                    break
                await asyncio.wait(
                    (self._first_pair, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            self.early -= 1
        if gone.cancelled():
            raise CancelledError("The client went away")
        if not self._first_pair.done():
            raise self._unavailable()

    def submit(
        self, state: RequestState, firsts: Sequence[int], *, but: RouterStream | None = None
    ) -> None:
        """Send prompts of a request with the time that is left of it, or let them wait. Never by
        the stream `but`.

        Raises QueueFullError while the stream is clogged.
        """
        streams = self._others(but)
        if not streams:
            state.dispatch.waits_until = self._clock() + self._patience
            self._wait(state, firsts)
        else:
            stream = self._choice.of(streams, state.submission, len(firsts) * state.n)
            seconds = max(0.0, state.deadline - self._clock())
            submits = [state.to_submit(first, seconds=seconds) for first in firsts]
            prompts = state.submission.prompts
            stream.submit(submits, [prompts[state.firsts.index(each)].chunks for each in firsts])
            state.dispatch.submitted_at = self._clock()

    def submit_again(
        self, state: RequestState, firsts: Sequence[int], *, but: RouterStream | None = None
    ) -> None:
        """Prompts that no router has taken. `but`: as in `submit`."""
        self._metrics.resubmitted.inc(len(firsts))
        self._submit_or_fail(state, firsts, but)

    def takes_back(self, state: RequestState, error: TandemError, refusing: RouterStream) -> bool:
        """Whether a refused prompt may run yet: elsewhere for want of a pair, later for room."""
        if isinstance(error, NoPairError):
            return self._choice.has_pair(self._others(refusing), state.submission)
        return self._may_wait(state, error)

    def take_back(
        self, state: RequestState, first: int, error: TandemError, refusing: RouterStream
    ) -> None:
        """A router has refused a prompt, which `takes_back` lets go elsewhere, or wait."""
        if isinstance(error, NoPairError):
            self.submit_again(state, (first,), but=refusing)
            return
        self._has_room = False
        self._wait(state, (first,))
        self._send_soon()

    def withdraw(self, state: RequestState) -> None:
        """Forget a request. What of it has not ended is cancelled."""
        self._end_wait(state)
        for stream in self._streams:
            stream.release(state.firsts, cancel=state.open_choices > 0)

    def waiting_for(self, missing: Missing) -> int:
        """How many requests wait here for that."""
        return self.early + len(self._waiting) if missing == self._missing else 0

    # --- streams ---

    def opened(self, stream: RouterStream) -> None:
        self._streams.append(stream)

    def use(self, stream: RouterStream) -> None:
        """Use a stream whose router has a pair, for new requests and waiting ones."""
        if stream not in self._used:
            self._used.append(stream)
            self._batch, self._has_room = FIRST_BATCH, True
            if self._next_batch is not None:
                self._next_batch.cancel()
                self._next_batch = None
        if not self._first_pair.done():
            self._first_pair.set_result(None)
        if self._next_batch is None:
            self._send_waiting()

    def ended(self, stream: RouterStream) -> None:
        self._streams.remove(stream)
        if stream in self._used:
            self._used.remove(stream)

    # --- inside ---

    def _send_waiting(self) -> None:
        """As much of what waits as the router may have room for; the rest a moment later."""
        self._next_batch = None
        if not self.in_use:
            return  # `use` begins anew
        sent = 0
        while self._waiting and self._has_room and sent < self._batch:
            state = self._waiting[0]
            firsts = self._end_wait(state)
            sent += len(firsts)
            self._submit_or_fail(state, firsts)
        self._send_soon()

    def _send_soon(self) -> None:
        if self._waiting and self._next_batch is None and self.in_use:
            later = asyncio.get_running_loop().call_later
            self._next_batch = later(BATCH_SECONDS, self._send_next)

    def _send_next(self) -> None:
        batch = self._batch * 2 if self._has_room else self._batch // 2
        self._batch, self._has_room = max(LEAST_BATCH, batch), True
        self._send_waiting()

    def _may_wait(self, state: RequestState, error: TandemError) -> bool:
        """Whether a prompt without room goes on waiting: its wait for a router is not over."""
        return isinstance(error, QueueFullError) and self._clock() < state.dispatch.waits_until

    def _others(self, but: RouterStream | None) -> list[RouterStream]:
        streams = self.in_use
        return streams if but is None else [each for each in streams if each is not but]

    def _submit_or_fail(
        self, state: RequestState, firsts: Sequence[int], but: RouterStream | None = None
    ) -> None:
        try:
            self.submit(state, firsts, but=but)
        except QueueFullError as error:
            if self._may_wait(state, error):
                self._has_room = False
                self._wait(state, firsts)
            else:
                state.fail(error)
        except Exception:  # what one request is must not keep others from their router
            log.exception("a request cannot be sent")
            state.fail(InternalError("The frontend failed; see its log"))

    def _unavailable(self) -> RefusedError:
        """Why one waited in vain."""
        match self._missing:
            case "room":
                return QueueFullError("The router has no room for the request; try again later")
            case "router":
                return RouterLostError("The router is not reachable; try again")
            case "pair":
                return NoPairError("No prefill and decode worker for the model are ready")

    @property
    def _missing(self) -> Missing:
        """What those who wait now wait for."""
        if self.in_use:
            return "room"
        return "pair" if self._open_streams else "router"

    def _wait(self, state: RequestState, firsts: Sequence[int]) -> None:
        if not state.dispatch.waiting:
            state.dispatch.turn = state.dispatch.turn or next(self._turns)
            bisect.insort(self._waiting, state, key=_TURN)
        state.dispatch.waiting += firsts
        if state.dispatch.patience is None:
            ends = min(state.dispatch.waits_until, state.deadline)
            state.dispatch.patience = asyncio.get_running_loop().call_later(
                ends - self._clock(), self._give_up, state, ends < state.dispatch.waits_until
            )

    def _give_up(self, state: RequestState, overdue: bool) -> None:
        error = DeadlineError("The request's time ran out while no router took it")
        state.fail(error if overdue else self._unavailable())

    def _end_wait(self, state: RequestState) -> list[int]:
        waiting, state.dispatch.waiting = state.dispatch.waiting, []
        if waiting:
            del self._waiting[bisect.bisect_left(self._waiting, state.dispatch.turn, key=_TURN)]
        if state.dispatch.patience is not None:
            state.dispatch.patience.cancel()
            state.dispatch.patience = None
        return waiting
