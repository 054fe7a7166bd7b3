"""Joins client requests to the streams of sequences: numbers them, and ends what routers end. By
which stream they go is dispatch.py's, and what workers wrote of them output.py's.

Sequence numbers are never reused in the process's life, whichever streams they go by.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tandem import errors
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.upstream import rows
from tandem.upstream.answer import RequestClient
from tandem.upstream.choice import Draw
from tandem.upstream.dispatch import Dispatcher
from tandem.upstream.metrics import Missing, UpstreamMetrics
from tandem.upstream.model_route import ModelRoute
from tandem.upstream.output import OutputReceiver
from tandem.upstream.request_state import RequestState
from tandem.upstream.resumable import ResumableState
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.served_model import takes
from tandem.upstream.submission import Submission
from tandem.v1 import router_pb2
from tandem.wire.frames import Part

_DEADLINE_GRACE_SECONDS = 5.0
"""The router ends a request at its deadline; this long after, the frontend does it without it."""


class Demultiplexer:
    """All open requests, and the models that they may be for."""

    def __init__(
        self,
        metrics: UpstreamMetrics,
        complaints: Complaints,
        budget: ByteBudget,
        *,
        max_open: int,
        max_request_bytes: int,
        max_backlog_bytes: int,
        router_wait_seconds: float,
        settled: Callable[[list[RequestState]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Draw = random.randrange,
    ) -> None:
        """Must be made on the event loop. `budget`: output that is kept takes of it. `settled` is
        told after each message of which requests it brought something: it takes that of each, and
        settles those that are over. None: each settles by itself. `clock` is the one that its
        timers go by, in seconds. `draw` chooses between routers.
        """
        self._metrics = metrics
        self._budget = budget
        self._wait_seconds = router_wait_seconds
        self._draw = draw
        self._routes: dict[str, ModelRoute] = {}
        """By the names of their models."""
        self._streams: list[RouterStream] = []
        self._max_open = max_open
        self._max_request_bytes = max_request_bytes
        self._max_backlog_bytes = max_backlog_bytes
        self._settled = settled
        self._clock = clock
        self._output = OutputReceiver(metrics, complaints, clock)
        self._open: dict[RequestState, ModelRoute] = {}
        self._touched: list[RequestState] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_plain = 1
        self._next_with_ids = rows.WITH_TOKEN_IDS + 1
        metrics.watch_waiting(self._waiting_for)

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def backlog_bytes(self) -> int:
        return sum(state.backlog for state in self._open)

    @property
    def ready(self) -> bool:
        """Whether a request for some model would find a pair now, or wait for one."""
        return any(route.ready for route in self._routes.values())

    @property
    def paired(self) -> bool:
        """Whether a pair for some model takes work now."""
        return any(route.paired for route in self._routes.values())

    @property
    def shown_models(self) -> set[str]:
        """Names of models that some router serves, or is to serve."""
        fleets = [stream.fleet for stream in self._streams if not stream.draining]
        served = {each.name for fleet in fleets for each in fleet.models if takes(each)}
        return served.union(*(fleet.expected for fleet in fleets))

    # --- models ---

    def add(self, model: str, tokenizer_sha256: str) -> ModelRoute:
        """Requests may be for the model from now on; ModelRoute says what the arguments are."""
        dispatcher = Dispatcher(
            self._metrics,
            model,
            wait_seconds=self._wait_seconds,
            max_open=self._max_open,
            clock=self._clock,
            draw=self._draw,
        )
        self._routes[model] = route = ModelRoute(model, tokenizer_sha256, dispatcher)
        for stream in self._streams:
            dispatcher.opened(stream)
            route.saw(stream, stream.fleet)
        return route

    def remove(self, route: ModelRoute) -> None:
        """Forget a model of which nothing is open."""
        del self._routes[route.model]
        for stream in self._streams:
            stream.views.pop(route.model, None)

    # --- requests ---

    @contextmanager
    def submit(
        self, submission: Submission, client: RequestClient, *, parent_span: int = 0
    ) -> Iterator[RequestState]:
        """Send a request on its way; leaving cancels whatever of it still runs. `parent_span`: its
        span; 0: it is not traced.

        Raises RefusedError where it cannot be submitted now, and TooLargeError where it never can.
        """
        if len(self._open) >= self._max_open:
            raise errors.QueueFullError("Too many open requests; try again later")
        route = self._route_of(submission)
        common_task = submission.common_task()
        submission.check_size(common_task, most=self._max_request_bytes)
        make = ResumableState if submission.submit.resume else RequestState
        state = make(
            submission,
            client,
            base=self._number(submission),
            common_task=common_task,
            deadline=self._clock() + submission.timeout_seconds,
            parent_span=parent_span,
            backlog_limit=self._max_backlog_bytes,
            budget=self._budget,
            inter_token=self._metrics.inter_token(submission.task.trace_id if parent_span else ""),
            touched=self._touched,
            release=self._release,
        )
        self._open[state] = route
        route.open_requests += 1
        self._idle.clear()
        self._output.expect(state)
        guard = asyncio.get_running_loop().call_later(
            submission.timeout_seconds + _DEADLINE_GRACE_SECONDS,
            lambda: state.fail(errors.DeadlineError("The request's time ran out")),
        )
        try:
            route.dispatcher.submit(state, state.firsts)
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
        self._streams.append(stream)
        for route in self._routes.values():
            route.dispatcher.opened(stream)

    def receive(self, stream: RouterStream, message: Part | router_pb2.RouterMessage) -> None:
        """Raises ValueError or DecodeError where the router itself breaks the protocol."""
        if isinstance(message, tuple):
            self._output.receive_part(stream, *message)
            self._settle()
            return
        if message.queue_wait:
            for wait in message.queue_wait[:]:
                if state := self._output.of(wait.sequence):
                    state.guarded(state.queue_wait, wait)
        if message.waiting:
            for waiting in message.waiting[:]:
                if state := self._output.of(waiting.sequence):
                    state.guarded(state.waits_for, waiting.what)
        self._output.receive(stream, message)
        if message.ends:
            for end in message.ends[:]:
                if state := self._output.of(end.sequence):
                    state.guarded(self._sequence_end, stream, state, end)
        self._settle()
        if message.HasField("fleet"):
            stream.fleet = message.fleet
            for route in self._routes.values():
                route.saw(stream, message.fleet)

    def unsent(self, firsts: Sequence[int]) -> None:
        """Prompts that have not left for a router which takes nothing new: they go elsewhere."""
        for route in self._routes.values():
            route.note_served()
        for first in firsts:
            if state := self._output.of(first):
                self._open[state].dispatcher.submit_again(state, (first,))

    def ended(self, stream: RouterStream, *, drained: bool) -> None:
        """Submit prompts again that the router had not begun; hooks may have seen the others."""
        self._streams.remove(stream)
        for route in self._routes.values():
            route.dispatcher.ended(stream)
            route.note_served()
        lost = errors.RouterLostError("The stream to the router broke; try again")
        for state, route in list(self._open.items()):
            cut = [first for first in state.firsts if self._runs(stream, state, first)]
            again = [first for first in cut if self._may_go_on(stream, state, first, drained)]
            if len(again) < len(cut):
                state.fail(lost)
            elif again:
                state.dispatch.lost_routers += not drained
                route.dispatcher.submit_again(state, again)

    # --- inside ---

    def _route_of(self, submission: Submission) -> ModelRoute:
        """Raises NoPairError for a model that has been removed meanwhile."""
        route = self._routes.get(submission.task.model) or self._routes.get("")
        if route is None:
            raise errors.NoPairError("No workers serve the model now; try again later")
        return route

    def _settle(self) -> None:
        if not self._touched:
            return
        if self._settled is not None:
            self._settled(self._touched)
        else:
            for state in self._touched:
                state.settle()
        self._touched.clear()

    def _waiting_for(self, missing: Missing) -> int:
        return sum(route.dispatcher.waiting_for(missing) for route in self._routes.values())

    def _number(self, submission: Submission) -> int:
        """The first of a block of fresh numbers, one for each choice."""
        if submission.task.want_token_ids:
            base = self._next_with_ids
            self._next_with_ids += submission.choices
        else:
            base = self._next_plain
            self._next_plain += submission.choices
        return base

    def _release(self, state: RequestState) -> None:
        """Forget a request, and cancel what has not ended. May be called twice."""
        if state not in self._open:
            return
        route = self._open.pop(state)
        route.open_requests -= 1
        if not self._open:
            self._idle.set()
        for sequence in state.sequences:
            self._output.end(sequence)
        route.dispatcher.withdraw(state)

    def _sequence_end(
        self, stream: RouterStream, state: RequestState, end: router_pb2.SequenceEnd
    ) -> None:
        if end.voucher:
            self._output.end(end.sequence)
            state.leave(end.sequence, end.voucher)
            return
        if not end.HasField("error"):
            self._output.end(end.sequence)
            state.withhold(end.sequence, end.stop_reason, end.completion_tokens)
            return
        first = state.first_of(end.sequence)
        if first not in stream.open:
            return  # it was refused together with another sequence, and goes elsewhere by now
        dispatcher = self._open[state].dispatcher
        error = errors.from_proto(end.error)
        refused = stream.draining and isinstance(error, errors.DrainingError)
        if refused and state.silent(first):
            stream.release((first,), cancel=False)
            dispatcher.submit_again(state, (first,))
        elif end.refused and state.silent(first) and dispatcher.takes_back(state, error, stream):
            if state.refused(first):
                stream.release((first,), cancel=False)
                dispatcher.take_back(state, first, error, stream)
        else:
            state.fail(error)

    def _may_go_on(
        self, stream: RouterStream, state: RequestState, first: int, drained: bool
    ) -> bool:
        """Whether another router may have a prompt whose stream has ended. A context-only one has
        no decode leg of which its router would have said that it runs. What was lost with two
        routers may be what they died of.
        """
        if stream.unsent(first) or not state.silent(first):
            return stream.unsent(first)
        begun = any(self._output.runs(each) for each in range(first, first + state.n))
        return drained or not (
            begun or state.submission.submit.context_only or state.dispatch.lost_routers
        )

    def _runs(self, stream: RouterStream, state: RequestState, first: int) -> bool:
        """Whether a prompt went by the stream, and not all its choices have ended."""
        choices = range(first, first + state.n)
        return first in stream.open and any(self._output.of(each) for each in choices)
