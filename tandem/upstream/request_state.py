"""One client request while the router has it: what came for its choices and was not yet taken.

A choice is one output: prompt p of a request with n outputs each has choices p*n .. p*n+n-1, as
OpenAI numbers them. One code path serves streaming and collected answers: both take the same rows,
sooner or later.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from math import inf, isfinite

from msgspec import Struct

from tandem.byte_budget import Allotment, ByteBudget
from tandem.endings import FINISH_FROM_WIRE, FinishReason
from tandem.errors import InternalError, QueueFullError, SlowClientError, TandemError, WorkerError
from tandem.sampling import MOST_STOP_WORD_TOKENS
from tandem.upstream.answer import ChoiceFinish, RequestClient, Row, joined
from tandem.upstream.submission import Submission
from tandem.v1 import common_pb2, router_pb2

log = logging.getLogger(__name__)

MOST_RUNS = 100
"""A choice whose output classifiers block is not run again so often."""
MOST_NAME_CHARACTERS = 256
"""The longest text of a report: a worker's name, what moves KV, why the router's queue was long."""
_ROW_BYTES = 200
"""What a row costs beside its text: its tuple, and its JSON frame once written."""
_ID_BYTES = 36
"""What a token id costs in a list."""
_COLLECTED_AT_ONCE = 16
"""Rows of a collected answer are counted when there are so many more of them."""


class Dispatch(Struct):
    """How far a request's dispatch has come. The dispatcher writes most of it."""

    waiting: list[int] = []
    """The first sequences of the prompts that wait for a stream to a router."""
    patience: asyncio.TimerHandle | None = None
    """Ends the wait of those prompts."""
    turn: int = 0
    """The lowest turn of waiting requests is sent first. 0: the request has never waited."""
    waits_until: float = 0.0
    """By the demultiplexer's clock: when the last wait for a router that takes requests is over."""
    submitted_at: float = 0.0
    """By the same clock: when a prompt was given to a router last."""
    lost_routers: int = 0
    """Routers that were lost while the request waited there."""
    refusals: dict[int, int] = {}
    """Sequences that the router refused last, by the first sequence of their prompt."""


class _Choice(Struct, gc=False):
    """How far one output has come. A token reads and writes it: its fields lie side by side."""

    rows: int = 0
    tokens: int = 0
    last_at: float = 0.0
    """When its last token came; 0: none has."""
    prompt_place: int = 0
    """Tokens of the prompt whose log-probabilities have come."""


@dataclass(slots=True, eq=False)
class RequestState:
    """Filled by the demultiplexer, emptied by one handler, both on the event loop.

    A streaming handler sets `pump`, which is called once after each message of the router that
    brought something, for as long as more is to come; it answers False while its client's socket is
    full. Rows it leaves are counted, and past `backlog_limit` bytes the client is given up. Without
    a pump they are collected: the budget of all clients is their bound.

    `show` spares most tokens that way: it is given a row that is all its message has for the
    request, where no other row waits, and answers False for what is to wait for the pump.
    """

    submission: Submission
    client: RequestClient
    _: KW_ONLY
    base: int
    """The number of its first sequence."""
    common_task: bytes
    """The submission's, until every prompt has output."""
    deadline: float
    parent_span: int
    """The span of the request; 0: it is not traced."""
    backlog_limit: int
    budget: InitVar[ByteBudget]
    inter_token: Callable[[float, int], object] | None
    """Counts seconds between tokens, so and so many times; None: nobody does."""
    touched: list[RequestState]
    """The state enters itself when a message brought something."""
    release: Callable[[RequestState], None]
    """Called once, as soon as nothing more is wanted from the router: at the last end, or at the
    first failure."""
    dispatch: Dispatch = field(default_factory=Dispatch, init=False)
    n: int = field(init=False)
    """How many choices each prompt has."""
    firsts: range = field(init=False)
    """The first sequence of each prompt."""
    open_choices: int = field(init=False)
    cached_tokens: list[int] = field(init=False)
    reports: list[common_pb2.PhaseReport] = field(default_factory=list, init=False)
    queue_waits: list[router_pb2.QueueWait] = field(default_factory=list, init=False)
    error: TandemError | None = field(default=None, init=False)
    finish_reasons: list[FinishReason] = field(default_factory=list, init=False)
    """Why choices ended, in the order in which they did."""
    first_at: float = field(default=0.0, init=False)
    pump: Callable[[], bool] | None = field(default=None, init=False)
    show: Callable[[Row, float], bool] | None = field(default=None, init=False)
    tell_wait: Callable[[str], object] | None = field(default=None, init=False)
    """Told what the request waits for, on one line for people."""
    let_go: Callable[[int], object] | None = field(default=None, init=False)
    """Told the bytes of a prompt that is no longer kept, because it has output."""
    _choices: list[_Choice] = field(init=False)
    _rows: list[Row] = field(default_factory=list, init=False)
    _ended: list[ChoiceFinish] = field(default_factory=list, init=False)
    _kept_prompts: int = field(init=False)
    _counted: int = field(default=0, init=False)
    _kept: Allotment = field(init=False)
    """Bytes of counted rows, and of taken rows that `hold` counts."""
    _held: int = field(default=0, init=False)
    _waiter: asyncio.Future[None] | None = field(default=None, init=False)
    _is_touched: bool = field(default=False, init=False)

    def __post_init__(self, budget: ByteBudget) -> None:
        submission = self.submission
        self.n = submission.submit.n
        self.firsts = range(self.base, self.base + submission.choices, self.n)
        self.open_choices = submission.choices
        self.cached_tokens = [0] * len(submission.prompts)
        self._choices = [_Choice() for _ in range(submission.choices)]
        self._kept_prompts = len(submission.prompts)
        self._kept = budget.allotment(self._end_for_room)

    @property
    def sequences(self) -> range:
        return range(self.base, self.base + len(self._choices))

    @property
    def is_over(self) -> bool:
        return self.error is not None or not self.open_choices

    @property
    def with_router_since(self) -> float:
        """When the last of its prompts was given to a router, in seconds of the demultiplexer's
        clock; infinite while one waits for a router.
        """
        return inf if self.dispatch.waiting else self.dispatch.submitted_at

    @property
    def backlog(self) -> int:
        """Bytes of output that wait for a client which reads slowly."""
        return 0 if self.pump is None else self._kept.size - self._held

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, shown or withheld once a choice has finished."""
        return sum(choice.tokens for choice in self._choices)

    def tokens_of(self, choice: int) -> int:
        return self._choices[choice].tokens

    def first_of(self, sequence: int) -> int:
        """The first sequence of its prompt."""
        return sequence - (sequence - self.base) % self.n

    def refused(self, first_sequence: int) -> bool:
        """Note a refused sequence; returns whether all sequences of its prompt are refused now."""
        refusals = self.dispatch.refusals.pop(first_sequence, 0) + 1
        if refusals < self.n:
            self.dispatch.refusals[first_sequence] = refusals
        return refusals == self.n

    def silent(self, first_sequence: int) -> bool:
        """Whether nothing has come for any choice of a prompt."""
        start = first_sequence - self.base
        return not any(choice.rows for choice in self._choices[start : start + self.n])

    def to_submit(self, first_sequence: int, *, seconds: float) -> router_pb2.Submit:
        """One prompt for a router, which has `seconds` for it."""
        return self.submission.to_submit(
            self.firsts.index(first_sequence),
            first_sequence,
            common=self.common_task,
            seconds=seconds,
            parent_span=self.parent_span,
        )

    @property
    def mean_itl_seconds(self) -> float:
        """Between a choice's tokens, in the mean, of the slowest choice. 0: no second token."""
        means = (
            (choice.last_at - self.first_at) / (choice.tokens - 1)
            for choice in self._choices
            if choice.last_at and choice.tokens > 1
        )
        return max(means, default=0.0)

    def last_at(self, choice: int) -> float:
        """When its last token came, in seconds of the demultiplexer's clock; 0: none has."""
        return self._choices[choice].last_at

    # --- the demultiplexer's side; `row` and `settle` run once a token ---

    def row(
        self,
        sequence: int,
        offset: int,
        count: int,
        text: str,
        now: float,
        alone: bool,
        token_ids: Sequence[int] = (),
        logprobs: Sequence[common_pb2.TokenLogprobs] = (),
    ) -> bool:
        """False: the row is not the sequence's next one. `alone`: its message has no more."""
        number = sequence - self.base
        choice = self._choices[number]
        if offset != choice.rows:
            return False
        choice.rows = offset + 1
        if count:
            choice.tokens += count
            if not choice.last_at:
                self._begin(number, now)
            elif self.inter_token is not None:
                self.inter_token((now - choice.last_at) / count, count)
            choice.last_at = now
        row = (number, text, token_ids, logprobs, count)
        if alone and self.show is not None and not self._rows:
            try:
                if self.show(row, now):
                    return True
            except Exception:  # what came for one request must not end the others
                log.exception("the output of a request cannot be written")
                self.fail(InternalError("The frontend failed; see its log"))
                return True
        self._rows.append(row)
        if not self._is_touched:
            self._is_touched = True
            self.touched.append(self)
        return True

    def begin(self, sequence: int) -> None:
        """A decode worker begins with the sequence, or begins again where another was lost."""

    def prompt_part(self, part: common_pb2.TokenLogprobs) -> bool:
        """Log-probabilities of its prompt, as one more row of a choice. A prefill that is run again
        says again what had come already. False: it cannot be the next part.
        """
        choice = part.sequence - self.base
        place = self._choices[choice].prompt_place
        end = part.place + len(part.token_id)
        most = self.submission.prompts[choice // self.n].tokens
        if not self.submission.task.sampling.HasField("prompt_logprobs") or end > most:
            return False
        if part.place == place:
            self._choices[choice].prompt_place = end
            self._rows.append((choice, "", (), (part,), 0))
            self._touch()
        return part.place == place or end <= place

    def _touch(self) -> None:
        if not self._is_touched:
            self._is_touched = True
            self.touched.append(self)

    def _has_prompt(self, choice: int) -> bool:
        """Whether the wanted log-probabilities of the choice's prompt have all come."""
        wanted = self.submission.task.sampling.HasField("prompt_logprobs")
        prompt = self.submission.prompts[choice // self.n]
        return not wanted or self._choices[choice].prompt_place == prompt.tokens

    def _begin(self, choice: int, now: float) -> None:
        """A choice has its first tokens: no router gets its prompt again."""
        self.first_at = self.first_at or now
        prompt = self.submission.prompts[choice // self.n]
        if size := len(prompt.task):
            prompt.task = b""
            self._kept_prompts -= 1
            if not self._kept_prompts:
                self.common_task = b""
            if self.let_go is not None:
                self.let_go(size)

    def _most_tokens(self, choice: int) -> int:
        """Tokens that all runs of a choice may generate together."""
        return MOST_RUNS * self.submission.prompts[choice // self.n].max_tokens

    def fits(self, finish: common_pb2.Finish) -> bool:
        """Whether it can be the end of what came for its choice."""
        choice = finish.sequence - self.base
        prompt = self.submission.prompts[choice // self.n]
        return (
            finish.rows == self._choices[choice].rows
            and self._has_prompt(choice)
            and finish.cached_tokens <= prompt.tokens
            and finish.completion_tokens <= self._most_tokens(choice)
            and len(finish.stop_tokens) <= MOST_STOP_WORD_TOKENS
        )

    def report(self, report: common_pb2.PhaseReport) -> None:
        """Take a phase's report; leave out one with impossible values, or one too many."""
        numbers = (
            *(report.hook_seconds, report.phase_seconds, report.kv_seconds),
            *(report.worker_seconds, report.kv_token_seconds),
        )
        names = len(report.worker), len(report.kv_transport)
        fits = all(isfinite(number) and number >= 0 for number in numbers) and (
            max(names) <= MOST_NAME_CHARACTERS and report.phase in common_pb2.Phase.values()
        )
        if fits and len(self.reports) < 2 * MOST_RUNS * self.submission.choices:
            self.reports.append(report)

    def queue_wait(self, wait: router_pb2.QueueWait) -> None:
        """Take a time in the queue; leave out an impossible one, or one too many."""
        fits = isfinite(wait.seconds) and wait.seconds >= 0
        if fits and len(self.queue_waits) < 2 * MOST_RUNS * self.submission.choices:
            wait.cause = wait.cause[:MOST_NAME_CHARACTERS]
            self.queue_waits.append(wait)

    def waits_for(self, what: str) -> None:
        """Take what the request waits for."""
        if self.tell_wait is not None:
            self.tell_wait(" ".join(what[:MOST_NAME_CHARACTERS].split()))

    def finish(self, finish: common_pb2.Finish) -> None:
        number = finish.sequence - self.base
        choice, prompt = self._choices[number], number // self.n
        self.cached_tokens[prompt] = max(self.cached_tokens[prompt], finish.cached_tokens)
        choice.tokens = max(choice.tokens, finish.completion_tokens)
        reason: FinishReason = FINISH_FROM_WIRE.get(finish.reason, "stop")
        if finish.withheld:
            reason = self.submission.withheld_reason
        self._end(
            ChoiceFinish(
                number,
                reason,
                finish.stop_reason or None,
                finish.external_scores,
                tuple(finish.stop_tokens),
                withheld=finish.withheld,
            )
        )

    def withhold(self, sequence: int, stop_reason: str, completion_tokens: int) -> None:
        """A hook ended the choice elsewhere. `completion_tokens`: what prefill's hook judged of it.
        In another choice: 0, for how far this one had come is chance.
        """
        choice, reason = sequence - self.base, self.submission.withheld_reason
        if completion_tokens <= self._most_tokens(choice):
            self._choices[choice].tokens = completion_tokens
            self._end(ChoiceFinish(choice, reason, stop_reason or None, withheld=True))
        else:
            self.fail(WorkerError("The router counts more tokens than the request allows"))

    def leave(self, sequence: int, voucher: bytes) -> None:
        """A context-only request has what it asked for; another fails."""
        if self.submission.submit.context_only:
            self._end(ChoiceFinish(sequence - self.base, "length", None, voucher=voucher))
        else:
            self.fail(WorkerError("The router ended the request with a voucher for another"))

    def _end(self, ending: ChoiceFinish) -> None:
        self._ended.append(ending)
        self.finish_reasons.append(ending.reason)
        self.open_choices -= 1
        self._touch()
        if self.open_choices == 0:
            self.release(self)

    def guarded(self, take: Callable[..., object], *arguments: object) -> None:
        """Do what came for this request; whatever that raises ends this request alone."""
        try:
            take(*arguments)
        except Exception:
            log.exception("a router's output for a request cannot be handled")
            self.fail(InternalError("The frontend failed; see its log"))

    def settle(self) -> None:
        """The router's message has been handed out: pass on what it brought."""
        self._is_touched = False
        if self.error is not None or not self.open_choices:
            self._wake()
            return
        try:
            if self.pump is None:
                if len(self._rows) - self._counted >= _COLLECTED_AT_ONCE:
                    self.count()
            elif not self.pump():
                self.count()
                if self.backlog > self.backlog_limit:
                    self._give_up_client()
        except Exception:
            log.exception("the output of a request cannot be written")
            self.fail(InternalError("The frontend failed; see its log"))

    def fail(self, error: TandemError) -> None:
        """End the whole request; what it still runs is cancelled. The first failure counts."""
        if not self.is_over:
            self.error = error
            self.release(self)
            self._wake()

    # --- the handler's side ---

    async def over(self) -> None:
        """Until the last end, or a failure."""
        if not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take(self) -> tuple[list[Row], list[ChoiceFinish]]:
        """All that came since the last call. A choice's rows come before its end."""
        self._is_touched = False
        rows, self._rows = self._rows, []
        ended = self._ended
        if ended:
            self._ended = []
        if self._counted:
            self._counted = 0
            self._kept.give_back(self._kept.size - self._held)
        return rows, ended

    def put_back(self, rows: list[Row], ended: list[ChoiceFinish]) -> None:
        """The last of what `take` gave: to be taken later."""
        self._rows, self._ended = rows + self._rows, ended + self._ended

    def count(self) -> None:
        """Rows that stay here take of the budget. Those of an answer that goes out as a whole are
        joined first. Their log-probabilities are copied: they are parts of a message, all of which
        they would keep.
        """
        rows, size = self._rows, 0
        if not self.submission.task.streaming:
            rows[self._counted :] = joined(rows[self._counted :])
        for place in range(self._counted, len(rows)):
            choice, text, token_ids, logprobs, tokens = rows[place]
            size += len(text) + _ROW_BYTES + _ID_BYTES * len(token_ids)
            if logprobs:
                copies = tuple(map(copy.copy, logprobs))
                rows[place] = (choice, text, token_ids, copies, tokens)
                size += sum(_ROW_BYTES + each.ByteSize() for each in copies)
        self._counted = len(rows)
        self._kept.grow(size)

    def hold(self, size: int) -> None:
        """Keep `size` more bytes of the output that was taken, until the end of the answer."""
        self._held += size
        self._kept.grow(size)

    def keep(self, size: int) -> None:
        """`size` bytes of the output that was taken wait for the client."""
        self._kept.grow(size)

    def close(self) -> None:
        """The handler is done with the request: nothing is kept any more."""
        self._kept.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up_client(self) -> None:
        self.fail(SlowClientError("The client reads more slowly than tokens come"))
        self.client.abort()

    def _end_for_room(self) -> None:
        """There is no memory for more output: end the request, which holds the most of all."""
        if self.submission.task.streaming:
            self._give_up_client()
        else:
            self.fail(QueueFullError("Answers take all memory there is; try again later"))
