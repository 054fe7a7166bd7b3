"""Joins client requests to the streams of sequences: numbers them, and ends what routers end. By
which stream they go is dispatch.py's, and what workers wrote of them output.py's.

Sequence numbers are never reused in the process's life, whichever streams they go by.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from tandem import errors
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.upstream import rows
from tandem.upstream.choice import Draw
from tandem.upstream.dispatch import Dispatcher
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.output import Output
from tandem.upstream.request_state import Client, RequestState
from tandem.upstream.resumable import ResumableState
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.router_view import RouterView
from tandem.upstream.served_model import takes, union
from tandem.upstream.submission import Submission
from tandem.v1 import router_pb2

log = logging.getLogger(__name__)

_DEADLINE_GRACE_SECONDS = 5.0
"""The router ends a request at its deadline; this long after, the frontend does it without it."""


class Demultiplexer:
    """All open requests, and what the router last said of the served model."""

    def __init__(
        self,
        metrics: UpstreamMetrics,
        complaints: Complaints,
        budget: ByteBudget,
        *,
        model: str,
        tokenizer_sha256: str,
        max_open: int,
        max_request_bytes: int,
        max_backlog_bytes: int,
        router_wait_seconds: float,
        settled: Callable[[list[RequestState]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Draw = random.randrange,
    ) -> None:
        """Must be made on the event loop. `budget`: output that is kept takes of it. `model`: the
        one that requests are for; empty: the only one that routers serve. `tokenizer_sha256`:
        of the tokenizer that made their prompts; empty: whoever wrote them answers for that.
        `settled` is told after each message of which requests it brought something.
        `clock` is the one that its timers go by, in seconds. `draw` chooses between routers.
        """
        self._dispatcher = Dispatcher(
            metrics, wait_seconds=router_wait_seconds, max_open=max_open, clock=clock, draw=draw
        )
        self._metrics = metrics
        self._budget = budget
        self._model = model
        self._tokenizer_sha256 = tokenizer_sha256
        self._max_open = max_open
        self._max_request_bytes = max_request_bytes
        self._max_backlog_bytes = max_backlog_bytes
        self._settled = settled
        self._clock = clock
        self._output = Output(metrics, complaints, clock)
        self._open: dict[RequestState, None] = {}
        self._touched: list[RequestState] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_plain = 1
        self._next_with_ids = rows.WITH_TOKEN_IDS + 1
        self._served: router_pb2.ServedModel | None = None
        """The served model as the routers that are used, or were last, see it together; None:
        unknown to them, or with another tokenizer.
        """

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def backlog_bytes(self) -> int:
        return sum(state.backlog for state in self._open)

    @property
    def ready(self) -> bool:
        """Whether a request would find a pair for the served model now, or wait for one."""
        used = bool(self._dispatcher.in_use)
        served = used and self._served is not None and takes(self._served)
        return served or self._dispatcher.expects_pair

    async def served_model(
        self, client: Client, timeout_seconds: float | None
    ) -> router_pb2.ServedModel:
        """The limits of the workers. Waits, as long as a request may wait, where no router has said
        yet what they are.

        Raises RefusedError after that and where no workers serve the model, and CancelledError once
        the client has gone.
        """
        await self._dispatcher.first_pair(client, timeout_seconds or inf)
        if self._served is None:
            raise errors.NoPairError("No workers serve the model now; try again later")
        return self._served

    @contextmanager
    def submit(
        self, submission: Submission, client: Client, *, parent_span: int = 0
    ) -> Iterator[RequestState]:
        """Send a request on its way; leaving cancels whatever of it still runs. `parent_span`: its
        span; 0: it is not traced.

        Raises RefusedError where it cannot be submitted now, and TooLargeError where it never can.
        """
        if len(self._open) >= self._max_open:
            raise errors.QueueFullError("Too many open requests; try again later")
        common_task = submission.common_task()
        submission.check_size(common_task, most=self._max_request_bytes)
        make = ResumableState if submission.resume else RequestState
        state = make(
            submission,
            client,
            base=self._number(submission),
            common_task=common_task,
            deadline=self._clock() + submission.timeout_seconds,
            parent_span=parent_span,
            backlog_limit=self._max_backlog_bytes,
            budget=self._budget,
            inter_token=self._metrics.inter_token(submission.trace_id if parent_span else ""),
            touched=self._touched,
            release=self._release,
        )
        self._open[state] = None
        self._idle.clear()
        self._output.expect(state)
        guard = asyncio.get_running_loop().call_later(
            submission.timeout_seconds + _DEADLINE_GRACE_SECONDS,
            lambda: state.fail(errors.DeadlineError("The request's time ran out")),
        )
        try:
            self._dispatcher.submit(state, state.firsts)
            client.watch(
                on_lost=lambda: state.fail(errors.CancelledError("The client went away")),
                on_stall=lambda: state.fail(errors.SlowClientError("The client does not read")),
            )
            yield state
        finally:
            guard.cancel()
            self._release(state)
            state.close()

    async def idle(self) -> None:
        """Until no request is open at the router."""
        await self._idle.wait()

    def fail_all(self, error: errors.TandemError) -> None:
        """End every open request with `error`."""
        for state in list(self._open):
            state.fail(error)

    # --- what routers say (router_link.Receiver) ---

    def opened(self, stream: RouterStream) -> None:
        self._dispatcher.opened(stream)

    def receive(self, stream: RouterStream, message: router_pb2.RouterMessage) -> None:
        """Raises ValueError where the router says no part's worker, or other nonsense, and
        DecodeError where a payload is none and nobody knows whose: it is the router's fault.
        """
        self._output.receive(stream, message)
        for end in message.ends[:]:
            if state := self._output.of(end.sequence):
                state.guarded(self._sequence_end, stream, state, end)
        if self._touched:
            for state in self._touched:
                state.settle()
            if self._settled is not None:
                self._settled(self._touched)
            self._touched.clear()
        if message.HasField("fleet"):
            self._fleet(stream, message.fleet)

    def unsent(self, firsts: Sequence[int]) -> None:
        """Prompts that have not left for a router which takes nothing new: they go elsewhere."""
        self._note_served()
        for first in firsts:
            if state := self._output.of(first):
                self._dispatcher.submit_again(state, (first,))

    def ended(self, stream: RouterStream, *, drained: bool) -> None:
        """Submit again what its router has certainly not begun. The rest fails: hooks may have seen
        it.
        """
        self._dispatcher.ended(stream)
        self._note_served()
        lost = errors.RouterLostError("The stream to the router broke; try again")
        for state in list(self._open):
            cut = [first for first in state.firsts if self._runs(stream, state, first)]
            again = [
                first for first in cut if stream.unsent(first) or (drained and state.silent(first))
            ]
            if len(again) < len(cut):
                state.fail(lost)
            elif again:
                self._dispatcher.submit_again(state, again)

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

    def _release(self, state: RequestState) -> None:
        """Forget a request, and cancel it at the router unless all of it has ended. May be called
        twice.
        """
        if state not in self._open:
            return
        del self._open[state]
        if not self._open:
            self._idle.set()
        for sequence in state.sequences:
            self._output.end(sequence)
        self._dispatcher.withdraw(state)

    def _sequence_end(
        self, stream: RouterStream, state: RequestState, end: router_pb2.SequenceEnd
    ) -> None:
        if end.voucher:
            self._output.end(end.sequence)
            state.leave(end.sequence, end.voucher)
            return
        if not end.HasField("error"):
            self._output.end(end.sequence)
            state.withhold(end.sequence, end.stop_reason)
            return
        first = state.first_of(end.sequence)
        if first not in stream.open:
            return  # it was refused together with another sequence, and goes elsewhere by now
        error = errors.from_proto(end.error)
        refused = stream.draining and isinstance(error, errors.DrainingError)
        if refused and state.silent(first):
            stream.release((first,), cancel=False)
            self._dispatcher.submit_again(state, (first,))
        elif end.refused and state.silent(first) and self._dispatcher.may_wait(state, error):
            if state.refused(first):
                stream.release((first,), cancel=False)
                self._dispatcher.wait_for_room(state, first)
        else:
            state.fail(error)

    def _runs(self, stream: RouterStream, state: RequestState, first: int) -> bool:
        """Whether a prompt went by the stream, and not all its choices have ended."""
        choices = range(first, first + state.n)
        return first in stream.open and any(self._output.of(each) for each in choices)

    def _fleet(self, stream: RouterStream, fleet: router_pb2.Fleet) -> None:
        """A router that has only just started knows no workers: it is used once it has a pair, or
        has had one. What a draining one still says of its fleet is not for what waits.
        """
        if stream.draining:
            return
        was_foreign = stream.view.foreign
        stream.view = view = self._view(fleet)
        if view.foreign and not was_foreign:
            log.error("the workers of the served model have another tokenizer: it is not served")
        served = union(view.models)
        if served is not None and takes(served):
            self._dispatcher.use(stream)
        self._note_served()

    def _note_served(self) -> None:
        """As long as no router is used it stays as it was."""
        if streams := self._dispatcher.in_use:
            self._served = union([model for stream in streams for model in stream.view.models])

    def _view(self, fleet: router_pb2.Fleet) -> RouterView:
        """What requests are for, of all that a router serves or is to serve."""
        named = [model for model in fleet.models if self._model in ("", model.name)]
        tokenizer = self._tokenizer_sha256
        mine = [model for model in named if tokenizer in ("", model.tokenizer_sha256)]
        foreign = not mine and any(map(takes, named))
        expects = any(self._model in ("", name) for name in fleet.expected)
        comes = any(self._model in ("", name) or not name for name in fleet.coming)
        if foreign or not (expects or comes):
            return RouterView(mine, foreign=foreign)
        return RouterView(mine, expects=expects, pair_wait_seconds=fleet.pair_wait_ms / 1000)
