"""The backend of an executor whose engines are behind a router: it sends what the core starts, and
tells it what comes. It runs on one event loop; the core is used under a lock that others share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from prometheus_client import CollectorRegistry

from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.errors import DeadlineError, InternalError, TandemError, VoucherError, WorkerError
from tandem.hooks.classifiers.scores import MAX_REPLACEMENT_CHARS
from tandem.logits.tap import Tapped
from tandem.message_limits import MAX_TASK_BYTES
from tandem.upstream.answer import ChoiceFinish
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.routers import Routers
from tandem.v1 import router_pb2
from tandem.wire.tls import PeerTls
from tandem_executor import halves, submissions, timing
from tandem_executor.config import ExecutorConfig
from tandem_executor.core import ExecutorCore, RequestStart
from tandem_executor.live import LiveCode
from tandem_executor.recorder import KvCache
from tandem_executor.responses import FinishReason
from tandem_executor.unread import CompletedSequence

log = logging.getLogger(__name__)

_UNBOUNDED = 2**62
"""The core bounds what is open and what is unread: nobody is refused or given up here."""
_FAILED = "The executor failed; see its log"


class RemoteBackend:
    """The way to a router, for as long as `run` runs."""

    def __init__(
        self,
        config: ExecutorConfig,
        core: ExecutorCore,
        lock: AbstractContextManager[object],
        live: LiveCode,
    ) -> None:
        """Raises ConfigError where the certificate's files cannot be used."""
        self._config = config
        self._core = core
        self._lock = lock
        self._live = live
        self._metrics = UpstreamMetrics(CollectorRegistry(), of_tokens=False)  # nobody reads it
        self._budget = ByteBudget(_UNBOUNDED)
        self._tls = PeerTls.of(config)
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._served: dict[RequestState, _Served] = {}
        self._turn_due = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._model: router_pb2.ServedModel | None = None
        """The served model that the core was told of last."""

    async def run(self, address: str, on_started: Callable[[], object]) -> None:
        """Hold the streams to routers, whose addresses have commas between them, and send and
        receive, until cancelled. From `on_started` on `turn_soon` may be called; it may itself be
        called twice. Should this fail, the core takes nothing more.
        """
        self._loop = asyncio.get_running_loop()
        complaints = Complaints(log)
        config = self._config
        routers = Routers(address.split(","), self._metrics, self._budget, tls=self._tls)
        try:
            self._demultiplexer = Demultiplexer(
                self._metrics,
                complaints,
                self._budget,
                max_open=_UNBOUNDED,
                max_request_bytes=MAX_TASK_BYTES,
                max_backlog_bytes=_UNBOUNDED,
                router_wait_seconds=config.router_wait_seconds,
                settled=self._turn,
            )
            self._route = self._demultiplexer.add(config.model, "")
            async with asyncio.TaskGroup() as self._tasks:
                on_started()
                try:
                    await routers.run(self._demultiplexer)
                finally:
                    self._stopped = True  # before the requests are cancelled
        except Exception:
            log.exception("the executor has failed")
        finally:
            with self._lock:
                self._core.stop(InternalError(_FAILED))
            on_started()  # whoever waits for the start waits no longer
            if self._timer is not None:
                self._timer.cancel()
            complaints.close()

    def turn_soon(self) -> None:
        """Turn once more, since the program has asked or read. On the loop only."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def turn_soon_from_elsewhere(self) -> None:
        """`turn_soon`, for other threads."""
        if not self._turn_due and not self._stopped:
            self._turn_due = True
            with suppress(RuntimeError):  # it has stopped meanwhile, and the loop is closed
                self._loop.call_soon_threadsafe(self._turn)

    def _turn(self, touched: Sequence[RequestState] = ()) -> None:
        """Tell the core what a message brought, and do what it says."""
        self._turn_due = False
        if self._stopped:
            return
        now = time.monotonic()
        core = self._core
        with self._lock:
            for state in touched:
                if served := self._served.get(state):
                    served.tell(core)
            if self._route.served is not self._model:
                self._note_kv_cache()
            deadline = core.next_deadline()
            if deadline is not None and deadline <= now:
                core.expire(now)
                deadline = core.next_deadline()
            starts, cancels = core.starts(), core.cancels()
            core.record(now, came=bool(touched))
            wakes = core.wakes()
        for waiter in wakes:
            waiter.wake()
        for start in starts:
            self._start(start)
        for request_id in cancels:
            if request_id in self._serving:
                self._serving[request_id].cancel()
        if deadline is not None and (self._timer is None or deadline < self._due):
            self._arm(deadline, now)

    def _note_kv_cache(self) -> None:
        """Routers say it anew once a second. The lock is held."""
        self._model = self._route.served
        said = self._route.kv_cache
        cache = said and KvCache(said.pages, min(said.used_pages, said.pages), said.page_size)
        self._core.recorder.kv_cache = cache

    def _arm(self, deadline: float, now: float) -> None:
        """Have a turn at a deadline, which is the next one."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._turn()

    def _start(self, start: RequestStart) -> None:
        task = self._tasks.create_task(self._serve(start))
        self._serving[start.request_id] = task
        task.add_done_callback(lambda _: self._serving.pop(start.request_id))

    async def _serve(self, start: RequestStart) -> None:
        """Have one request answered. Cancelling it cancels the request."""
        try:
            served = await self._send(start)
            error = served.state.error
        except TandemError as refusal:
            served, error = None, refusal
        except Exception:  # what one request is must not end the others
            log.exception("a request cannot be served")
            served, error = None, InternalError(_FAILED)
        with self._lock:
            if served is not None:
                served.tell(self._core)
            if isinstance(error, DeadlineError):
                self._core.time_out(start.request_id)
            elif error is not None:
                self._core.fail(start.request_id, error)
        self.turn_soon()

    async def _send(self, start: RequestStart) -> _Served:
        """Until it has ended at the router. Raises TandemError where it cannot be sent."""
        left = start.deadline - time.monotonic()
        model = await self._route.served_model(_PROGRAM, left)
        left = max(0.001, start.deadline - time.monotonic())
        submission = submissions.submission(
            start.request_id, start.request, model, self._config, seconds=left
        )
        with (
            self._live.held(start.request_id, submission.task.trace_id, start.request) as tapped,
            self._demultiplexer.submit(submission, _PROGRAM) as state,
        ):
            served = self._served[state] = _Served(start, state, tapped)
            if submission.task.want_report:
                with self._lock:
                    self._core.measure(start.request_id, partial(timing.measure, state))
            try:
                await state.over()
            finally:
                del self._served[state]
            return served


class _Served:
    """A request at the router, and what came of it and was not yet told to the core."""

    __slots__ = (
        "_counts",
        "_end_id",
        "_id",
        "_noted",
        "_replacements",
        "_streaming",
        "_tapped",
        "state",
    )

    def __init__(self, start: RequestStart, state: RequestState, tapped: Tapped | None) -> None:
        self.state = state
        self._tapped = tapped
        self._counts: Counter[int] = Counter()
        self._id = start.request_id
        self._end_id = start.request.end_id
        self._streaming = start.request.streaming
        self._noted = False
        self._replacements: dict[int, str] = {}

    def tell(self, core: ExecutorCore) -> None:
        """Tell the core all that came. The lock is held."""
        rows, ended = self.state.take()
        for choice, text, token_ids, logprobs, _ in rows:
            if text:  # none is asked for: it is a classifier's
                said = self._replacements.get(choice, "") + text
                self._replacements[choice] = said[:MAX_REPLACEMENT_CHARS]
            if token_ids:
                values: list[float] = []
                for entry in logprobs:
                    values += entry.logprob
                if self._tapped is not None:
                    self._tell_tapped(core, self._tapped, choice, list(token_ids), values)
                else:
                    core.tokens(self._id, choice, list(token_ids), values)
        if ended:
            self.state.settle()
        for finish in ended:
            if finish.voucher:
                self._leave(core, finish)
                continue
            self._note_prompt(core, finish)
            try:
                completion = self._completion(finish)
            except (ValueError, RecursionError):
                core.fail(self._id, WorkerError("The answers of classifiers cannot be read"))
                continue
            if self._tapped is not None and not self._streaming:
                logits = self._tapped.logits(finish.choice, self._counts[finish.choice])
                completion = completion._replace(logits=logits)
            core.finish(self._id, finish.choice, completion)

    def _tell_tapped(
        self,
        core: ExecutorCore,
        tapped: Tapped,
        choice: int,
        token_ids: list[int],
        log_probs: list[float],
    ) -> None:
        """Tell tokens of a request that wants logits, which come with each that is streamed."""
        position = self._counts[choice]
        self._counts[choice] += len(token_ids)
        if not self._streaming:
            core.tokens(self._id, choice, token_ids, log_probs)
            return
        for place, token_id in enumerate(token_ids):
            logits = tapped.logits_of_token(choice, position + place)
            core.tokens(self._id, choice, [token_id], log_probs[place : place + 1], logits)

    def _note_prompt(self, core: ExecutorCore, finish: ChoiceFinish) -> None:
        """Once a request. Where a hook withheld it elsewhere, nobody says what was cached."""
        if not (self._noted or finish.withheld):
            self._noted = True
            prompt, cached = self.state.submission.prompt_tokens, self.state.cached_tokens[0]
            core.recorder.prompt_read(tokens=prompt, cached=cached)

    def _leave(self, core: ExecutorCore, finish: ChoiceFinish) -> None:
        """A context-only request has ended in good order."""
        try:
            params, log_probs = halves.left(self._id, finish.voucher)
        except VoucherError:
            core.fail(self._id, WorkerError("The router's message cannot be read"))
            return
        core.tokens(self._id, finish.choice, list(params.first_gen_tokens), log_probs)
        core.finish(self._id, finish.choice, CompletedSequence(FinishReason.LENGTH, params=params))

    def _completion(self, finish: ChoiceFinish) -> CompletedSequence:
        """Raises ValueError or RecursionError where scores are no JSON."""
        scores = json.loads(finish.external_scores) if finish.external_scores else None
        if finish.reason == submissions.WITHHELD:
            return CompletedSequence(
                FinishReason.STOP_WORDS,
                finish.stop_reason or "",
                withheld=True,
                replacement=self._replacements.get(finish.choice, ""),
                external_scores=scores,
            )
        if finish.reason == "length":
            return CompletedSequence(FinishReason.LENGTH, external_scores=scores)
        word = finish.stop_tokens
        stopped = word and word[-1] != self._end_id
        reason = FinishReason.STOP_WORDS if stopped else FinishReason.END_ID
        return CompletedSequence(reason, external_scores=scores)


class _Program:
    """The client of every request: a program never disconnects, but cancels."""

    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        """A program never disconnects, and never stalls."""

    def abort(self) -> None:
        """The core alone buffers for the program."""


_PROGRAM = _Program()
