"""Serves one generating request from submission to last byte, as a stream or as one body."""

from __future__ import annotations

import logging
import time

from frontend.http import errors as http_errors
from frontend.http.messages import Call
from frontend.metrics import Metrics
from frontend.openai.answers import PhaseReport, PromptTokensDetails, Report, Usage
from frontend.openai.dialects import Dialect
from frontend.openai.tokenizer import Tokenizer
from frontend.openai.writers import BodyWriter, EventWriter
from frontend.upstream.demultiplexer import Demultiplexer
from frontend.upstream.request_state import RequestState
from frontend.upstream.submission import Submission
from tandem.errors import CancelledError, RequestError, SlowClientError, TandemError
from tandem.tracing import exemplars
from tandem.v1 import common_pb2

log = logging.getLogger(__name__)


class Generation:
    """What every request shares; one object for the process."""

    def __init__(
        self,
        demultiplexer: Demultiplexer,
        tokenizer: Tokenizer,
        metrics: Metrics,
        *,
        backlog_limit: int,
    ) -> None:
        self._demultiplexer = demultiplexer
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._backlog_limit = backlog_limit

    async def run(
        self,
        call: Call,
        dialect: Dialect,
        submission: Submission,
        *,
        include_usage: bool,
        echo: bool,
        arrived: float,
    ) -> TandemError | None:
        """Answer the client. A failure after the first byte is told to it here and returned.

        Raises the failure where nothing has been sent yet.
        """
        echoes = [p.text for p in submission.prompts for _ in range(submission.n)] if echo else []
        if call.span is not None:
            call.span.submitted(submission)
        with self._demultiplexer.state(
            submission,
            backlog_limit=self._backlog_limit,
            abort_client=call.connection.abort,
            parent_span=0 if call.span is None else call.span.span_id,
        ) as state:
            call.connection.watch(
                on_lost=lambda: state.fail(CancelledError("The client went away")),
                on_stall=lambda: state.fail(SlowClientError("The client does not read")),
            )
            self._metrics.prompt_tokens.inc(submission.prompt_tokens)
            try:
                ending = _Ending(submission, state, arrived)
                if submission.streaming:
                    events = EventWriter(
                        dialect,
                        self._tokenizer,
                        trace_id=submission.trace_id,
                        model=submission.model,
                        choices=submission.choices,
                        include_usage=include_usage,
                        token_ids=submission.want_token_ids,
                    )
                    await _stream(call, state, events, ending, echoes)
                else:
                    body = BodyWriter(
                        dialect,
                        self._tokenizer,
                        trace_id=submission.trace_id,
                        model=submission.model,
                        choices=submission.choices,
                        token_ids=submission.want_token_ids,
                    )
                    await _collect(call, state, body, ending, echoes)
            except RequestError as error:
                error.param = submission.client_param(error.param)
                raise
            finally:
                self._measure(call, state, arrived)
            return state.error

    def _measure(self, call: Call, state: RequestState, arrived: float) -> None:
        """Of a request that is over."""
        exemplar = None if call.span is None else exemplars.labels(call.trace_id)
        if state.first_at:
            self._metrics.ttft_seconds.observe(state.first_at - arrived, exemplar)
        now = time.monotonic()
        self._metrics.request_seconds.observe(now - arrived, exemplar)
        if state.error is None and not state.open_choices:
            self._metrics.slo.count(
                ttft_seconds=(state.first_at or now) - arrived,
                itl_seconds=state.mean_itl_seconds,
            )
        if call.span is not None:
            call.span.generated(state, arrived=arrived)


class _Ending:
    """What is said of a request as a whole, once it has ended."""

    def __init__(self, submission: Submission, state: RequestState, arrived: float) -> None:
        self._submission, self._state, self._arrived = submission, state, arrived

    def usage(self) -> Usage:
        prompt, completion = self._submission.prompt_tokens, self._state.completion_tokens
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._state.cached_tokens)),
        )

    def report(self) -> Report | None:
        if not self._submission.want_report:
            return None
        return Report(
            trace_id=self._submission.trace_id,
            ttft_seconds=(first_at - self._arrived) if (first_at := self._state.first_at) else None,
            request_seconds=time.monotonic() - self._arrived,
            phases=[_phase(report, self._state.base) for report in self._state.reports],
        )


async def _stream(
    call: Call, state: RequestState, events: EventWriter, ending: _Ending, echoes: list[str]
) -> None:
    """Rows go from the router's message straight to the socket; this task sleeps until the end."""
    live = _Live(call, state, events, events.opening(echoes))
    state.pump = call.connection.on_writable = live.pump
    await state.over()
    state.pump = None  # they hold each other: else both are left to the garbage collector
    if state.error is not None and not call.started:
        raise state.error
    last = live.take()
    if state.error is not None:
        last += b"data: " + http_errors.body(state.error) + b"\n\n"
    else:
        last += events.closing(ending.usage(), ending.report())
    await call.end_stream(last)


class _Live:
    """Writes a stream's events as they come."""

    __slots__ = ("_call", "_events", "_opening", "_state")

    def __init__(
        self, call: Call, state: RequestState, events: EventWriter, opening: bytes
    ) -> None:
        self._call, self._state, self._events = call, state, events
        self._opening = opening

    def pump(self) -> bool:
        """Send what there is. False: the client's socket is full, and nothing was taken."""
        call = self._call
        if not call.connection.writable:
            return False
        if body := self.take():
            call.stream(body)
        return True

    def take(self) -> bytes:
        """The events of all that has come; a choice's rows before its end."""
        rows, ended = self._state.take()
        events = self._events
        if len(rows) == 1 and not ended and not self._opening:
            return events.row(rows[0])
        opening, self._opening = self._opening, b""
        return b"".join((opening, *map(events.row, rows), *map(events.ending, ended)))


async def _collect(
    call: Call, state: RequestState, body: BodyWriter, ending: _Ending, echoes: list[str]
) -> None:
    await state.over()
    if state.error is not None:
        raise state.error
    rows, ended = state.take()
    body.opening(echoes)
    for row in rows:
        body.row(row)
    for end in ended:
        body.ending(end)
    await call.respond(200, body.body(ending.usage(), ending.report()))


def _phase(report: common_pb2.PhaseReport, base: int) -> PhaseReport:
    return PhaseReport(
        choice=report.sequence - base,
        phase="prefill" if report.phase == common_pb2.PHASE_PREFILL else "decode",
        worker=report.worker,
        request_id=report.request_id,
        emitted=report.emitted,
        suppressed=report.suppressed,
        terminated=report.terminated,
        hook_seconds=report.hook_seconds,
        phase_seconds=report.phase_seconds,
        kv_bytes=report.kv_bytes,
        kv_seconds=report.kv_seconds,
        kv_transport=report.kv_transport,
    )
