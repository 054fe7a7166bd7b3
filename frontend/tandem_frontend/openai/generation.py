"""Serves one generating request, in one direction: decode, preprocess, submit, write the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from tandem.errors import RequestError, TandemError
from tandem.tracing import exemplars
from tandem.tracing.spans import SpanEvent
from tandem.upstream.answer import Row
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.request_state import RequestState
from tandem.upstream.submission import Submission
from tandem_frontend.gen_ai_metrics import PROVIDER, GenAiMetrics
from tandem_frontend.http.messages import Call
from tandem_frontend.http.spans import CallSpan
from tandem_frontend.metrics import Metrics
from tandem_frontend.openai import slices
from tandem_frontend.openai.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.dialects import Collector, Dialect, Events
from tandem_frontend.openai.keep_alive import COMMENT, KeepAlive
from tandem_frontend.openai.parsed import Parsed
from tandem_frontend.openai.reading.bodies import BodyReading
from tandem_frontend.openai.reports import report
from tandem_frontend.prices import Prices


@dataclass(eq=False)
class Generation:
    """What every request shares; one object for the process."""

    reading: BodyReading
    demultiplexer: Demultiplexer
    metrics: Metrics
    _: KW_ONLY
    prices: Prices
    keep_alive_seconds: float
    """How long a stream may be silent; 0: as long as it will."""
    gen_ai: GenAiMetrics | None
    """None: requests are not counted under OpenTelemetry's names."""

    async def serve(self, dialect: Dialect, call: Call) -> TandemError | None:
        """Answer the client; returns the failure after a first byte, and raises one before it."""
        call.connection.check_opened_in_time()
        model, submission = await self.reading.submission(dialect, call)
        call.times.model, call.times.prompt_tokens = (
            submission.full_model,
            submission.prompt_tokens,
        )
        _keep_prompts(call, submission)
        if call.span is not None:
            _trace_submission(call.span, dialect, submission)
        with self.demultiplexer.submit(
            submission, call.connection, parent_span=0 if call.span is None else call.span.span_id
        ) as state:
            state.let_go = call.allotment.give_back
            self.metrics.prompt_tokens.inc(submission.prompt_tokens)
            if call.tenant is not None:
                call.tenant.spend(time.monotonic(), prompt=submission.prompt_tokens)
            try:
                writer: Events | Collector
                if submission.task.streaming:
                    writer = dialect.events(model.tokenizer, submission, state)
                    await self._stream(call, state, writer, dialect)
                else:
                    writer = dialect.body(model.tokenizer, submission)
                    await self._collect(call, state, writer, dialect)
                parsed = writer.parsed
                self.metrics.count_calls(parsed.calls, broken=parsed.broken_calls)
            finally:
                self._measure(call, dialect, submission, state)
                self.metrics.models.count(submission.full_model, failed=state.error is not None)
            return state.error

    async def _stream(
        self, call: Call, state: RequestState, events: Events, dialect: Dialect
    ) -> None:
        """Rows go from the router to the socket at once; this task sleeps until the end."""
        live = _Live(call, state, events)
        state.pump = call.connection.on_writable = live.pump
        if state.submission.choices == 1:  # else a step's events leave together
            state.show = live.show
            state.tell_wait = live.tell_wait if state.submission.task.want_report else None
        seconds = self.keep_alive_seconds
        with KeepAlive(seconds, silent_since=live.silent_since, send=live.keep_alive):
            await _over(call, state, dialect)
        # They hold each other: else both are left to the garbage collector.
        state.pump = state.show = state.tell_wait = None
        if state.error is not None and not call.started:
            raise state.error
        last = live.take()
        while live.unfinished:
            if not call.connection.writable:
                state.count()
            await call.send_events(last)
            last = live.take()
        if state.error is not None:
            last += events.failing(state.error)
        else:
            last += events.closing(self._usage(state, events.parsed), report(state, call.times))
        if not call.connection.writable:
            state.keep(len(last))
        await call.end_stream(last)

    async def _collect(
        self, call: Call, state: RequestState, body: Collector, dialect: Dialect
    ) -> None:
        await _over(call, state, dialect)
        if state.error is not None:
            raise state.error
        rows, ended = state.take()
        for part in slices.slices(rows):
            for row in part:
                body.row(row)
            if len(part) < len(rows):
                await asyncio.sleep(0)
        for end in ended:
            body.ending(end)
        pieces = body.pieces(self._usage(state, body.parsed), report(state, call.times))
        await call.respond_in_pieces(200, [batch async for batch in slices.batches(pieces)])

    def _usage(self, state: RequestState, parsed: Parsed) -> Usage:
        """Cached tokens would tell of the prompts of others, where others share the cache."""
        submission = state.submission
        prompt, completion = submission.prompt_tokens, state.completion_tokens
        shared = bool(submission.task.tenant) and not submission.task.cache_salt
        cached = 0 if shared else sum(state.cached_tokens)
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )
        if parsed.reasoning_tokens is not None:
            details = CompletionTokensDetails(reasoning_tokens=parsed.reasoning_tokens)
            usage.completion_tokens_details = details
        task = submission.task
        if cost := self.prices.cost(task.model, submission.full_model, state.reports):
            usage.cost, usage.cost_details = cost
        return usage

    def _measure(
        self, call: Call, dialect: Dialect, submission: Asked, state: RequestState
    ) -> None:
        arrived = call.times.arrived
        exemplar = None if call.span is None else exemplars.labels(call.trace_id)
        if state.first_at:
            self.metrics.ttft_seconds.observe(state.first_at - arrived, exemplar)
        now = time.monotonic()
        call.times.tokens = state.completion_tokens
        if call.tenant is not None:
            call.tenant.spend(now, completion=state.completion_tokens)
        self.metrics.request_seconds.observe(now - arrived, exemplar)
        if state.error is None and not state.open_choices:
            self.metrics.slo.count(
                ttft_seconds=(state.first_at or now) - arrived,
                itl_seconds=state.mean_itl_seconds,
            )
        if self.gen_ai is not None:
            self.gen_ai.count(
                state,
                operation=dialect.operation,
                model=submission.shown_model,
                began=arrived,
                ended=now,
            )
        if call.span is not None:
            _trace_output(call.span, state, arrived)


def _keep_prompts(call: Call, submission: Submission) -> None:
    """Let go of the body but for them. Raises QueueFullError where they find no room."""
    kept = submission.held_bytes - call.allotment.size
    if kept > 0:
        call.allotment.admit(kept)
    else:
        call.allotment.give_back(-kept)


async def _over(call: Call, state: RequestState, dialect: Dialect) -> None:
    """Until the router has nothing more for the request; its error names what the client knows."""
    await state.over()
    times, dispatch = call.times, state.dispatch
    times.over, times.first = time.monotonic(), state.first_at
    times.submitted, times.lost_routers = dispatch.submitted_at, dispatch.lost_routers
    if isinstance(state.error, RequestError):
        state.error.param = state.submission.client_param(state.error.param)
        dialect.name(state.error)


class _Live:
    """Writes a stream's events as they come; much of them in slices."""

    def __init__(self, call: Call, state: RequestState, events: Events) -> None:
        self._call, self._state, self._events = call, state, events
        self._connection = call.connection
        self._begun = False
        self._opening: Iterator[bytes] | None = events.opening()
        self._now = asyncio.get_running_loop().time
        self._sent_at = 0.0
        """By the loop's clock: the last event or comment."""
        self.unfinished = False
        """More had come than was taken last."""

    def pump(self) -> bool:
        """Send a slice of what there is. False: the client's socket is full, nothing was taken."""
        if not self._connection.writable:
            return False
        if body := self.take():
            self._send(body)
        if self.unfinished:
            asyncio.get_running_loop().call_soon(self._go_on)
        return True

    def show(self, row: Row, now: float) -> bool:
        """Send a row before which nothing waits. False: it is to wait for `pump`, as the first one
        does, which comes behind the opening, and is not shown with a failure in its message.
        """
        if self._opening is not None or not (self._begun and self._connection.writable):
            return False
        if body := self._events.row(row):
            self._sent_at = now
            self._connection.write_chunk(body)
        return True

    def silent_since(self) -> float:
        """When something was sent last. Before: when a router was given the request. It refuses at
        once what it refuses, with the failure's own status; what it keeps is admitted.
        """
        return self._sent_at if self._begun else self._state.with_router_since

    def keep_alive(self) -> None:
        """Send a comment; not behind what the client has yet to read, nor behind the end."""
        if self._connection.writable and not self._state.is_over:
            self._send(COMMENT)

    def tell_wait(self, what: str) -> None:
        """Send a comment that says what the request waits for; not behind an event."""
        if self._opening is not None and self._connection.writable and not self._state.is_over:
            self._send(f": waiting: {what}\n\n".encode())

    def take(self) -> bytes:
        """The events of what has come; a choice's rows before its end."""
        self.unfinished = False
        if self._opening is not None:
            return self._open(self._opening)
        rows, ended = self._state.take()
        count = slices.first(rows)
        if count < len(rows):
            self._state.put_back(rows[count:], ended)
            self.unfinished = True
            return b"".join(map(self._events.row, rows[:count]))
        return b"".join((*map(self._events.row, rows), *map(self._events.ending, ended)))

    def _send(self, body: bytes) -> None:
        self._sent_at = self._now()
        if self._begun:
            self._connection.write_chunk(body)
        else:
            self._begun = True
            self._call.begin_stream(body)

    def _open(self, opening: Iterator[bytes]) -> bytes:
        """The events before all others, and the first others where those are few."""
        first = slices.joined(opening)
        if len(first) < slices.SLICE_BYTES:
            self._opening = None
            return first + self.take()
        self.unfinished = True
        return first

    def _go_on(self) -> None:
        """Later, if nobody has done it meanwhile."""
        if self.unfinished and self._state.pump is not None:
            self._state.settle()


def _trace_submission(span: CallSpan, dialect: Dialect, submission: Asked) -> None:
    """Attributes are named as OpenTelemetry's conventions for generative AI name them."""
    sampling = submission.task.sampling
    if conversation := submission.conversation_id:
        span.add({"gen_ai.conversation.id": conversation})
    span.add(
        {
            "gen_ai.operation.name": dialect.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": submission.shown_model,
            "gen_ai.response.model": submission.full_model,
            "gen_ai.request.stream": submission.task.streaming,
            "gen_ai.request.choice.count": submission.submit.n,
            "gen_ai.request.max_tokens": max(each.max_tokens for each in submission.prompts),
            "gen_ai.request.temperature": round(sampling.temperature, 6),
            "gen_ai.request.top_p": round(sampling.top_p, 6),
            "gen_ai.usage.input_tokens": submission.prompt_tokens,
        },
        SpanEvent("submitted", time.monotonic()),
    )


def _trace_output(span: CallSpan, state: RequestState, arrived: float) -> None:
    """The router has nothing more for the request."""
    span.add(
        {
            "gen_ai.usage.output_tokens": state.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": sum(state.cached_tokens),
            "gen_ai.response.finish_reasons": state.finish_reasons,
        }
    )
    if state.first_at:
        first_chunk = {"gen_ai.response.time_to_first_chunk": state.first_at - arrived}
        span.add(first_chunk, SpanEvent("first_token", state.first_at))
