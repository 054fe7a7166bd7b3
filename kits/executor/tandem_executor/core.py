"""All that an executor decides, without I/O: which requests may be sent, what has come of them, and
how each ends. Both executors drive it; one does so from threads, and holds a lock.

A program enqueues, reads, cancels and waits; a backend asks for `starts` and `cancels`, and says
what came. Whatever either does, each request gets exactly one final response, and what nobody has
read stays within `max_unread_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tandem.errors import TandemError, TooLargeError, WorkerError
from tandem.logits.tap import Logits
from tandem_executor.errors import FullError, ShutDownError
from tandem_executor.ranking import Ranking
from tandem_executor.recorder import Recorder
from tandem_executor.requests import Request
from tandem_executor.responses import FinishReason, Response
from tandem_executor.unread import CompletedSequence, Measure, Unread
from tandem_executor.waiters import Waiter, Waiters

FIRST_ID = 1


class Enqueued(NamedTuple):
    """A request as it is enqueued: what is wrong with it, or else what it may bring."""

    request: Request
    fault: TandemError | None = None
    sequences: int = 1
    tokens: int = 1
    """The most that may come of it, of all sequences together."""
    seconds: float = 0.0
    """Until it times out."""
    logits_rows: int = 0
    """The most rows of logits that it may bring."""


class RequestStart(NamedTuple):
    """A request that is to be sent now."""

    request_id: int
    request: Request
    deadline: float


@dataclass(slots=True)
class OpenRequest:
    """A request whose final response has not been read."""

    asked: Enqueued
    unread: Unread
    deadline: float
    started: bool = False
    waits: bool = True
    """No response has come yet."""
    credit: int = 0
    """What it holds of `max_unread_tokens`: unread tokens, and those that may still come."""
    logits_rows: int = 0
    """Rows that the request holds of `max_logits_rows`, until its responses were read."""

    def spare(self) -> int:
        """Tokens that an ended request need not hold: they never came, or nobody is shown them."""
        return self.credit - self.unread.unread_tokens


class ExecutorCore:
    """The requests of one executor, from `enqueue` until their final response is read."""

    def __init__(
        self,
        *,
        max_queue_size: int,
        max_open_sequences: int,
        max_unread_tokens: int,
        max_logits_rows: int = 0,
        iter_stats_max_iterations: int = 0,
        request_stats_max_iterations: int = 0,
    ) -> None:
        self._max_queue = max_queue_size
        self._max_sequences = self._places = max_open_sequences
        self._max_unread = self._credit = max_unread_tokens
        self._max_rows = self._rows = max_logits_rows
        """Rows of logits that may still be promised. Those of a request come back once all of it
        has been read."""
        self._entries: dict[int, OpenRequest] = {}
        self._next_id = FIRST_ID
        self._queue = Ranking()
        """Requests that wait here, by priority and arrival."""
        self._deadlines = Ranking()
        """Requests that have not ended."""
        self._cancels: list[int] = []
        self._waiting = 0
        """Requests of which nothing has come, here and at the router."""
        self._ready: dict[int, None] = {}
        """Requests that have responses, in the order in which they got their first."""
        self._came: list[int] = []
        """Requests that got their first response since the last `wakes`."""
        self._waiters = Waiters()
        self.recorder = Recorder(
            iterations=iter_stats_max_iterations,
            request_iterations=request_stats_max_iterations,
            most_active=max_open_sequences,
        )
        self._stopped = False
        self.closed = False

    # --- the program's side ----------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises ShutDownError after `shut_down`."""
        if self.closed:
            raise ShutDownError("The executor was shut down")

    def enqueue(self, asked: Sequence[Enqueued], now: float) -> list[int]:
        """Returns ids, in order. Raises ShutDownError, and FullError where they do not all fit."""
        self.check_open()
        self._check_running()
        if self._waiting + len(asked) > self._max_queue:
            raise FullError(
                f"Maximum queue size of {self._max_queue} has been reached, please try again later"
            )
        return [self._enqueue(each, now) for each in asked]

    def read(self, request_id: int | None) -> list[Response]:
        """Responses that are ready, of one request or, for None, of all; they are not given again.
        An id without a request, or whose final response was read, gives an error response.
        """
        if request_id is not None and request_id not in self._entries:
            return [self._unknown(request_id)]
        responses: list[Response] = []
        for each in [*self._ready] if request_id is None else (request_id,):
            entry = self._entries[each]
            tokens = entry.unread.read(responses)
            entry.credit -= tokens
            self._credit += tokens
            self._ready.pop(each, None)
            if entry.unread.ended:
                self._rows += entry.logits_rows
                del self._entries[each]
        return responses

    def ready(self, request_id: int | None) -> int:
        """How many responses there are to read, of one request or, for None, of all."""
        if request_id is None:
            return sum(self._entries[each].unread.ready for each in self._ready)
        entry = self._entries.get(request_id)
        return 0 if entry is None else entry.unread.ready

    def cancel(self, request_id: int) -> None:
        """End a request now. One that has ended, or never was, is not touched."""
        self._end(request_id, FinishReason.CANCELLED)

    def wait(self, waiter: Waiter) -> None:
        """Wake it once there may be something for it to read, or at shutdown. Raises ShutDownError
        where nothing can come any more.
        """
        if self._stopped:
            self._check_running()
        self._waiters.add(waiter)

    def forget(self, waiter: Waiter) -> None:
        """The waiter waits no longer. If it was woken and left something unread, wake another."""
        self._waiters.forget(waiter, unread=bool(self._ready))

    def shut_down(self) -> None:
        """End everything, and wake whoever waits: there is nothing to read any longer. May be
        called twice.
        """
        self.closed = True
        self._entries.clear()
        self.recorder.clear()
        self._ready.clear()
        self._queue.clear()
        self._deadlines.clear()
        self._waiters.wake_all()

    def leave(self) -> None:
        """Give the core up in a process that is a fork of the program's: whoever waits is in the
        other process.
        """
        self.closed = True
        self._waiters = Waiters()

    # --- the backend's side ----------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that wait to be started."""
        return len(self._queue.ranks)

    def starts(self) -> list[RequestStart]:
        """Requests that are to be sent now. Of each the backend says `tokens`, and `finish` once
        for each sequence or `fail`.
        """
        found: list[RequestStart] = []
        if not self._queue.ranks:
            return found
        while (first := self._queue.first()) is not None:
            entry = self._entries[first[0]]
            asked = entry.asked
            if asked.sequences > self._places or asked.tokens > self._credit:
                break
            if asked.logits_rows > self._rows:
                break
            self._queue.discard(first[0])
            self._places -= asked.sequences
            self._credit -= asked.tokens
            entry.logits_rows = asked.logits_rows
            self._rows -= asked.logits_rows
            entry.started, entry.credit = True, asked.tokens
            self.recorder.started(first[0], entry.unread)
            found.append(RequestStart(first[0], asked.request, entry.deadline))
        return found

    def cancels(self) -> list[int]:
        """Requests that were started, and of which nothing more is wanted."""
        cancels, self._cancels = self._cancels, []
        return cancels

    def measure(self, request_id: int, measure: Measure) -> None:
        """How to measure a request that was started; asked for at the end of each sequence, where
        the program wants it.
        """
        if (entry := self._open(request_id)) is not None:
            entry.unread.measure = measure

    def tokens(
        self,
        request_id: int,
        sequence: int,
        token_ids: list[int],
        log_probs: list[float],
        logits: Logits | None = None,
    ) -> None:
        """Take in a sequence's tokens. A request that has ended takes nothing more. The lists are
        kept. `logits`: of one token that is streamed.
        """
        entry = self._entries.get(request_id)
        if entry is None or (unread := entry.unread).ended:
            return
        if unread.arrived + len(token_ids) > entry.asked.tokens:
            self._cancels.append(request_id)
            self.fail(request_id, WorkerError("More tokens came than were asked for"))
            return
        unread.tokens(sequence, token_ids, log_probs, logits)
        if entry.waits or not unread.ready:
            self._came_of(request_id, entry)
        elif request_id not in self._ready:  # the same, without a call for each token
            self._ready[request_id] = None
            self._came.append(request_id)

    def finish(self, request_id: int, sequence: int, completion: CompletedSequence) -> None:
        """A sequence of a request has ended."""
        if (entry := self._open(request_id)) is not None:
            entry.unread.finish(sequence, completion)
            self._changed(request_id, entry)

    def fail(self, request_id: int, error: TandemError) -> None:
        """A request has failed, all its sequences together."""
        if (entry := self._open(request_id)) is not None:
            entry.unread.fail(error)
            self._changed(request_id, entry)

    def time_out(self, request_id: int) -> None:
        """The time of a request is over."""
        self._end(request_id, FinishReason.TIMED_OUT)

    def wakes(self) -> list[Waiter]:
        """Who is to be woken for what came or ended since the last call, which the program may
        have done too. They want the lock, so wake them without it.
        """
        came, self._came = self._came, []
        return self._waiters.take(came, first=len(came) >= len(self._ready)) if came else []

    def expire(self, now: float) -> None:
        """Time out whatever is due."""
        while (first := self._deadlines.first()) is not None and first[1] <= now:
            self.time_out(first[0])

    def next_deadline(self) -> float | None:
        """When `expire` is to be called next; None: nothing is open."""
        first = self._deadlines.first()
        return None if first is None else first[1]

    def record(self, now: float, *, came: bool) -> None:
        """An iteration is over: something `came` since the last one, or started, or ended. With
        none of that there was none.
        """
        queued = self.queued
        self.recorder.record(now, came=came, queued=queued, silent=self._waiting - queued)

    def stop(self, error: TandemError) -> None:
        """The backend is gone: fail what has not ended, and take nothing new."""
        self._stopped = True
        for request_id in list(self._entries):
            self.fail(request_id, error)
        self._waiters.wake_all()

    # --- inside ----------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._stopped:
            raise ShutDownError("The executor has failed")

    def _enqueue(self, asked: Enqueued, now: float) -> int:
        request_id = self._next_id
        self._next_id += 1
        fault = asked.fault or self._too_large(asked)
        unread = Unread(request_id, asked.request, 1 if fault else asked.sequences, now)
        self._entries[request_id] = OpenRequest(asked, unread, now + asked.seconds)
        self._waiting += 1
        self._deadlines.add(request_id, now + asked.seconds)
        self.recorder.enqueued(request_id, unread)
        if fault:
            self.fail(request_id, fault)
        else:
            self._queue.add(request_id, -asked.request.priority)
        return request_id

    def _too_large(self, asked: Enqueued) -> TooLargeError | None:
        """Why the request could never start; None: it can."""
        for name, needed, most in (
            ("max_open_sequences", asked.sequences, self._max_sequences),
            ("max_unread_tokens", asked.tokens, self._max_unread),
            ("max_logits_rows", asked.logits_rows, self._max_rows),
        ):
            if needed > most:
                return TooLargeError(f"The request needs {needed} of {name}, which is {most}")
        return None

    def _open(self, request_id: int) -> OpenRequest | None:
        """A request that has not ended."""
        entry = self._entries.get(request_id)
        return None if entry is None or entry.unread.ended else entry

    def _end(self, request_id: int, reason: FinishReason) -> None:
        """End a request before its time, wherever it is."""
        if (entry := self._open(request_id)) is not None:
            if entry.started:
                self._cancels.append(request_id)
            entry.unread.finish_all(CompletedSequence(reason))
            self._changed(request_id, entry)

    def _changed(self, request_id: int, entry: OpenRequest) -> None:
        """Something came of a request, and may be its end."""
        if entry.unread.ended:
            self._queue.discard(request_id)
            self._deadlines.discard(request_id)
            if entry.started:
                self._places += entry.asked.sequences
            self.recorder.ended(request_id, entry.unread)
            spare = entry.spare()
            entry.credit -= spare
            self._credit += spare
        self._came_of(request_id, entry)

    def _came_of(self, request_id: int, entry: OpenRequest) -> None:
        """Something came of a request."""
        if entry.waits:
            entry.waits = False
            self._waiting -= 1
        if entry.unread.ready and request_id not in self._ready:
            self._ready[request_id] = None
            self._came.append(request_id)

    def _unknown(self, request_id: int) -> Response:
        if FIRST_ID <= request_id < self._next_id:
            message = f"ReqId {request_id} has already been processed and was terminated."
        else:
            message = f"ReqId {request_id} was never given to a request."
        return Response(request_id, message)
