"""The plain streaming call: one request, checked here, its columns parsed here.

A Generate call is a frontend of its own to the core, so its cancel, its backlog and its end are
those of any frontend.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from tandem import ids
from tandem.byte_budget import ByteBudget
from tandem.errors import (
    InvalidRequestError,
    SlowClientError,
    TandemError,
    WorkerError,
)
from tandem.sampling import TOP_K_OFF, check_ranges
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import frames
from tandem_router.core import actions, events
from tandem_router.core.values import MOST_MS
from tandem_router.ingress import check_names
from tandem_router.permissions import Permissions

FIRST_SEQUENCE = 1
"""A call's outputs are numbered from here."""
_DEFAULTS = {"top_p": 1.0, "top_k": TOP_K_OFF, "repetition_penalty": 1.0}
"""Defaults of fields for which 0 is no value."""


def submit(
    request: router_pb2.GenerateRequest,
    *,
    frontend: int,
    permissions: Permissions,
    max_n: int,
    default_timeout_seconds: float,
    max_timeout_seconds: float,
) -> events.Submit:
    """The request as the core takes it, defaults filled in. Raises RequestError."""
    n = request.n or 1
    if n > max_n:
        raise InvalidRequestError(f"n must be at most {max_n}", param="n")
    timeout_ms = request.timeout_ms or min(int(default_timeout_seconds * 1000), MOST_MS)
    limit = int(max_timeout_seconds * 1000)
    if timeout_ms > limit:
        raise InvalidRequestError(f"timeout_ms must be at most {limit}", param="timeout_ms")
    task = _complete(request.task)
    data = task.SerializeToString()
    needs = permissions.check(data)
    message = router_pb2.Submit(
        first_sequence=FIRST_SEQUENCE,
        n=n,
        model=task.model,
        timeout_ms=timeout_ms,
        prompt_tokens=len(task.prompt_token_ids),
        max_tokens=task.sampling.max_tokens,
        priority=request.priority,
        want_report=task.want_report,
        want_cost=task.want_cost,
        prompt_logprobs=task.sampling.HasField("prompt_logprobs"),
        trace_id=task.trace_id,
        weight=1,
    )
    return events.Submit(frontend, message, data, needs=needs)


def _complete(given: common_pb2.Task) -> common_pb2.Task:
    task = common_pb2.Task()
    task.CopyFrom(given)
    if bool(task.prompt_token_ids) == bool(task.prompt_text):
        raise InvalidRequestError(
            "give either task.prompt_token_ids or task.prompt_text", param="task.prompt_text"
        )
    for name in ("regeneration", "resume"):
        if task.HasField(name):
            raise InvalidRequestError(f"only routers set task.{name}", param=f"task.{name}")
    check_names(task.trace_id, task.model, where="task.")
    task.trace_id = task.trace_id or ids.new_trace_id()
    task.streaming = True
    task.want_text = task.want_text or not task.want_token_ids
    for name, value in _DEFAULTS.items():
        if not getattr(task.sampling, name):
            setattr(task.sampling, name, value)
    check_ranges(task.sampling, where="task.sampling.")
    return task


class Answers:
    """The sink of one Generate call."""

    def __init__(
        self,
        n: int,
        max_backlog_bytes: int,
        budget: ByteBudget,
        *,
        prompt_logprobs: bool = False,
    ) -> None:
        """`prompt_logprobs`: those of the prompt are asked for, and belong to each output."""
        self._open = n
        self._outputs = range(FIRST_SEQUENCE, FIRST_SEQUENCE + n)
        self._scores_prompt = prompt_logprobs
        self._runs: dict[int, int] = {}
        """Which worker each output runs on."""
        self._rows: Counter[int] = Counter()
        self._prompt_places: Counter[int] = Counter()
        """Tokens of the prompt whose log-probabilities each output has had."""
        self._backlog = budget.allotment(self._does_not_read, most=max_backlog_bytes)
        self._waiting: list[router_pb2.GenerateResponse] = []
        self._failure: TandemError | None = None
        self._changed = asyncio.Event()
        self._news = asyncio.Event()

    def add_run(self, sequence: int, worker: int) -> None:
        self._runs[sequence] = worker

    def add_queue_wait(self, action: actions.QueueWait) -> None:
        wait = router_pb2.QueueWait(seconds=action.seconds, cause=action.cause)
        index = action.sequence - FIRST_SEQUENCE
        self._waiting.append(router_pb2.GenerateResponse(output_index=index, queue_wait=wait))
        self._changed.set()

    def add_waiting(self, action: actions.TellWait) -> None:
        """A plain call is told how long it has waited, and not what it waits for."""

    def add_payload(self, worker: int, payload: bytes) -> str:
        try:
            rows = frames.parse(payload)
            prompts = self._prompts(rows)
            self._check(worker, rows)
            responses = prompts + _responses(rows)
        except (DecodeError, IndexError, ValueError) as error:
            self.add_lost(worker)
            return f"output that cannot be read: {error}"
        self._open -= len(rows.finish)
        self._waiting += responses
        self._backlog.grow(len(payload))
        self._changed.set()
        return ""

    def _does_not_read(self) -> None:
        self._waiting = []
        self.fail(SlowClientError("the client does not read its stream"))

    def add_lost(self, worker: int) -> None:
        if worker in self._runs.values():
            self.fail(WorkerError("a worker's output cannot be read; try again"))

    def _prompts(self, rows: common_pb2.TokenColumns) -> list[router_pb2.GenerateResponse]:
        """Parts of the prompt's log-probabilities, which are prefill's. One that is run again says
        again what has come. Raises ValueError for a part that is not the next one.
        """
        responses = []
        for part in rows.prompt_logprobs:
            place, end = self._prompt_places[part.sequence], part.place + len(part.token_id)
            wanted = self._scores_prompt and part.sequence in self._outputs
            if not wanted or part.place > place:
                raise ValueError("log-probabilities of a prompt that nobody waits for")
            if part.place == place:
                self._prompt_places[part.sequence] = end
                index = part.sequence - FIRST_SEQUENCE
                response = router_pb2.GenerateResponse(output_index=index, prompt_logprobs=part)
                responses.append(response)
        return responses

    def _check(self, worker: int, rows: common_pb2.TokenColumns) -> None:
        """Raises ValueError for output that is not what follows."""
        for sequence, offset in zip(rows.sequence, rows.offset, strict=True):
            if self._runs.get(sequence) != worker:
                raise ValueError("rows of sequences that run elsewhere")
            if offset != self._rows[sequence]:
                raise ValueError("a row is missing or comes again")
            self._rows[sequence] += 1
        for finish in rows.finish:
            if self._runs.get(finish.sequence) != worker:
                raise ValueError("the end of a sequence that runs elsewhere")
            if finish.rows != self._rows[finish.sequence]:
                raise ValueError("a row is missing or comes again")
            if self._scores_prompt and finish.prompt_tokens != self._prompt_places[finish.sequence]:
                raise ValueError("log-probabilities of the prompt are missing")

    def add_voucher(self, action: actions.GiveVoucher, signed: bytes) -> None:
        """A Generate call never asks for one."""

    def add_end(self, action: actions.EndSequence) -> None:
        if action.error is not None:
            self.fail(action.error)
            return
        finish = common_pb2.Finish(
            sequence=action.sequence,
            reason=common_pb2.FINISH_REASON_STOP,
            stop_reason=action.stop_reason,
            prompt_tokens=action.prompt_tokens,
            completion_tokens=action.completion_tokens,
            withheld=True,
        )
        index = action.sequence - FIRST_SEQUENCE
        self._waiting.append(router_pb2.GenerateResponse(output_index=index, finish=finish))
        self._open -= 1
        self._changed.set()

    def set_fleet(self, fleet: router_pb2.Fleet) -> None:
        self._news.set()

    def set_draining(self) -> None:
        """The call ends with its request."""
        self._news.set()

    def fail(self, error: TandemError) -> None:
        self._failure = self._failure or error
        self._changed.set()

    def close(self) -> None:
        """The call ends with its request."""

    def gone(self) -> None:
        self._backlog.close()

    async def news(self) -> None:
        """Until the fleet may have changed, or the router drains."""
        await self._news.wait()
        self._news.clear()

    async def responses(self) -> AsyncIterator[router_pb2.GenerateResponse]:
        """What came, until every output has ended. Raises the TandemError that ended one."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            waiting, self._waiting = self._waiting, []
            taken = self._backlog.size
            for response in waiting:
                yield response
            self._backlog.give_back(taken)
            if self._failure is not None:
                raise self._failure
            if self._open <= 0 and not self._waiting:
                return


def _responses(rows: common_pb2.TokenColumns) -> list[router_pb2.GenerateResponse]:
    """One response for each output that the columns speak of; a second report has one of its own.

    Raises ValueError where the columns are not of one length.
    """
    answers: dict[int, router_pb2.GenerateResponse] = {}
    more: list[router_pb2.GenerateResponse] = []

    def answer(sequence: int) -> router_pb2.GenerateResponse:
        found = answers.get(sequence)
        if found is None:
            index = sequence - FIRST_SEQUENCE
            found = answers[sequence] = router_pb2.GenerateResponse(output_index=index)
        return found

    taken = 0
    for sequence, count, text in zip(rows.sequence, rows.token_count, rows.text, strict=True):
        response = answer(sequence)
        response.text += text
        if rows.token_id:
            response.token_ids.extend(rows.token_id[taken : taken + count])
            taken += count
    for logprobs in rows.logprobs:
        answer(logprobs.sequence).logprobs.MergeFrom(logprobs)
    for report in rows.report:
        response = answer(report.sequence)
        if response.HasField("report"):
            index = report.sequence - FIRST_SEQUENCE
            more.append(router_pb2.GenerateResponse(output_index=index, report=report))
        else:
            response.report.CopyFrom(report)
    for finish in rows.finish:
        answer(finish.sequence).finish.CopyFrom(finish)
    return [*more, *answers.values()]
