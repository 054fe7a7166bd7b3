"""Frontends' conduct on their streams to routers, judged from the messages and the clients.

A prompt is submitted once, and again only where no router has begun it, with the time that is left.
A client that goes is told to its router at once, and nobody else is. Nothing waits while a router
takes it, nothing goes to a router without a pair while another has one, and a draining router's
stream is let go as soon as nothing is open by it. A worker's output that is none is told to the
router at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from simulated.frontend_process import BACKLOG_BYTES, WAIT_SECONDS, Answer, FrontendProcess
from tandem.errors import DrainingError, NoPairError, QueueFullError
from tandem.v1 import router_pb2
from tandem.wire.frames import parse

if TYPE_CHECKING:
    from simulated.network import Call

_MOMENT = 1e-6
_WORD_SECONDS = 0.25
"""A router's word that it has begun a sequence is on its way no longer (see plan.py's delays)."""


@dataclass(slots=True)
class StreamBook:
    """What went by one stream."""

    submitted: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    """Sequences that its router, which drains, has not begun."""
    told: set[int] = field(default_factory=set)
    """Sequences of which its router has said that they run."""
    full: set[int] = field(default_factory=set)
    """Sequences that it has not begun for want of room, or of a pair."""
    drains_since: float | None = None
    has_pair: bool = False
    """Its router has said that it has one, and has not taken that back."""
    paired: bool = False
    """Its router has one now, as it said last."""
    paired_since: float = 0.0
    """Since when it says so, or that it has none."""
    greeted: bool = False
    unreadable: set[int] = field(default_factory=set)
    """Workers whose output was none, of which the router is to be told."""


class FrontendRules:
    """All frontends of a world. `slack`: seconds that a message may wait for its stream."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        slack: float,
        fault: Callable[[str], None],
        open_calls: Callable[[], dict[Call, None]],
    ) -> None:
        self._now, self._slack, self._fault = now, slack, fault
        self._open = open_calls
        self._streams: dict[Call, StreamBook] = {}
        self._last: dict[tuple[str, int], Call] = {}
        """By which stream a prompt was submitted last: by frontend and first sequence."""
        self._patience: dict[str, float] = {}
        """How long a request may wait for a router, by frontend: the most that any has allowed."""
        self._ended: list[tuple[FrontendProcess, Answer]] = []
        self.begun: dict[tuple[str, int], float] = {}
        """When a router started a prompt last, by trace id and first sequence."""

    def _book(self, call: Call) -> StreamBook:
        return self._streams.setdefault(call, StreamBook())

    # --- messages ---

    def sent(
        self, frontend: FrontendProcess, call: Call, message: router_pb2.FrontendMessage
    ) -> None:
        book = self._book(call)
        for submit in message.submit:
            first, answer = submit.first_sequence, frontend.answer_of(submit.trace_id)
            self._submitted(frontend, call, submit, answer)
            book.submitted.add(first)
            book.full.discard(first)
            self._last[frontend.name, first] = call
        book.unreadable.difference_update(each.worker for each in message.complaint)
        for first in message.cancel:
            if first not in book.submitted or first in book.cancelled:
                self._fault(f"{frontend.name} cancels {first}, which is not open there")
            book.cancelled.add(first)
            self._cancelled(frontend, first)

    def _submitted(
        self, frontend: FrontendProcess, call: Call, submit: router_pb2.Submit, answer: Answer
    ) -> None:
        now, book = self._now(), self._book(call)
        name = f"{frontend.name}: prompt {submit.first_sequence}"
        deadline = answer.asked + answer.request.timeout
        if now + submit.timeout_ms / 1000 > deadline + self._slack + 0.001:
            self._fault(f"{name} has {submit.timeout_ms} ms, past its deadline at {deadline}")
        if submit.tokenizer_sha256 != frontend.tokenizer_sha256:
            self._fault(f"{name} is submitted as if of {submit.tokenizer_sha256!r}")
        if not book.has_pair:
            self._fault(f"{name} is submitted to a router that never had a pair")
        if not book.paired and self._paired_elsewhere(call, book):
            self._fault(f"{name} is submitted to a router without a pair, and another has one")
        if answer.over is not None and answer.over < now - _MOMENT:
            self._fault(f"{name} is submitted and its client has gone")
        begun = self.begun.get((submit.trace_id, submit.first_sequence))
        if begun is not None and not self._word_lost(frontend, submit, begun):
            self._fault(f"{name} is submitted again, and a router had begun it")
        if submit.first_sequence in book.submitted - book.full:
            self._fault(f"{name} is submitted twice by one stream")
        if book.drains_since is not None and answer.asked > book.drains_since:
            self._fault(f"{name} is submitted to a router that drains")
        if (frontend.name, submit.first_sequence) not in self._last:
            waited = now - answer.asked
            if waited > self._patience.get(frontend.name, WAIT_SECONDS) + self._slack:
                self._fault(f"{name} has waited {waited:.1f} s")

    def _paired_elsewhere(self, call: Call, book: StreamBook) -> bool:
        """Whether another router of the frontend has had a pair for longer than a submit waits for
        its stream, and this one has had none for as long.
        """
        last = self._now() - self._slack
        return book.paired_since < last and any(
            other.client is call.client
            and theirs.paired
            and theirs.paired_since < last
            and theirs.drains_since is None
            and other in self._open()
            for other, theirs in self._streams.items()
        )

    def _word_lost(
        self, frontend: FrontendProcess, submit: router_pb2.Submit, begun: float
    ) -> bool:
        """Whether the stream of a prompt broke while its router's word was on its way that it had
        begun the prompt (design 0011).
        """
        first = submit.first_sequence
        before = self._last.get((frontend.name, first))
        if before is None or before.ended_well:
            return False
        ended = self._now() if before.over_at is None else before.over_at
        if ended > begun + _WORD_SECONDS:
            return False
        return self._book(before).told.isdisjoint(range(first, first + submit.n))

    def _cancelled(self, frontend: FrontendProcess, first: int) -> None:
        for answer in frontend.answers:
            state = answer.state
            if state is not None and first in state.firsts:
                if state.error is None and not state.open_choices:
                    self._fault(f"{frontend.name} cancels {first}, which has finished")
                return

    def arrived(
        self, frontend: FrontendProcess, call: Call, message: router_pb2.RouterMessage
    ) -> None:
        book, fleet = self._book(call), message.fleet
        book.greeted = True
        book.told.update(message.run_sequence)
        if frontend.model in fleet.expected:
            before = self._patience.get(frontend.name, WAIT_SECONDS)
            self._patience[frontend.name] = max(before, fleet.pair_wait_ms / 1000)
        for model in message.fleet.models:
            mine = frontend.model, frontend.tokenizer_sha256
            takes = model.ready_pairs or model.waits
            if (model.name, model.tokenizer_sha256) == mine:
                book.has_pair = book.has_pair or bool(takes)
                if book.paired is not (model.ready_pairs > 0):
                    book.paired, book.paired_since = not book.paired, self._now()
        if message.draining and self._book(call).drains_since is None:
            self._book(call).drains_since = self._now()
        drained = (end for end in message.ends if end.error.code == DrainingError.code)
        book.refused.update(end.sequence for end in drained)
        wants = QueueFullError.code, NoPairError.code
        full = (end for end in message.ends if end.error.code in wants)
        book.full.update(end.sequence for end in full if end.refused)
        book.unreadable.update(_unreadable(message))

    def over(self, frontend: FrontendProcess, answer: Answer) -> None:
        """A client has its answer."""
        error = answer.error
        broke = error is not None and error.message.startswith("The stream to the router broke")
        if broke and not self._was_lost(frontend, answer):
            self._fault(f"{frontend.name} gives up what no router has begun: {error}")
        self._ended.append((frontend, answer))

    def _was_lost(self, frontend: FrontendProcess, answer: Answer) -> bool:
        """Whether some router may have begun a part of it."""
        state = answer.state
        assert state is not None
        trace_id = answer.trace_id
        for first in state.firsts:
            call = self._last.get((frontend.name, first))
            in_order = call is not None and call.ended_well and self._book(call).drains_since
            if call is not None and (not in_order or (trace_id, first) in self.begun):
                return True
        return False

    # --- at rest ---

    def at_rest(self, frontends: Iterable[FrontendProcess], calls: dict[Call, None]) -> None:
        ended, self._ended = self._ended, []
        for frontend, answer in ended:
            if not frontend.process.stopped:
                self._after_the_end(frontend, answer, calls)
        for frontend in frontends:
            if not frontend.process.stopped:
                self._nothing_waits(frontend, calls)
                for answer in frontend.open_answers:
                    if answer.state is not None and answer.state.backlog > BACKLOG_BYTES:
                        self._fault(f"{answer.state.backlog} bytes wait for a client")
        for call, book in self._streams.items():
            if book.unreadable and call in calls and not call.up.blocked:
                self._complained(call, book, frontends)
            if book.drains_since is not None and call in calls:
                self._let_go(call, book, frontends)

    def _complained(
        self, call: Call, book: StreamBook, frontends: Iterable[FrontendProcess]
    ) -> None:
        for frontend in frontends:
            if frontend.process is call.client and not frontend.process.stopped:
                self._fault(f"{frontend.name} reads nonsense of {book.unreadable} and says nothing")

    def _after_the_end(
        self, frontend: FrontendProcess, answer: Answer, calls: dict[Call, None]
    ) -> None:
        state = answer.state
        if state is None or not state.open_choices:
            return
        for first in state.firsts:
            call = self._last.get((frontend.name, first))
            if call is None or call not in calls or call.up.blocked:
                continue
            choices = range(first - state.base, first - state.base + state.n)
            if all(choice in answer.ends for choice in choices):
                continue
            book = self._book(call)
            if not book.refused.isdisjoint(range(first, first + state.n)):
                continue
            told = first in book.cancelled
            if answer.left and not told:
                self._fault(f"{frontend.name} does not cancel {first}, whose client has gone")

    def _nothing_waits(self, frontend: FrontendProcess, calls: dict[Call, None]) -> None:
        for answer in list(frontend.unsent):
            state = answer.state
            if state is None:
                continue
            waiting = [each for each in state.firsts if (frontend.name, each) not in self._last]
            if not waiting or state.error is not None or not state.open_choices:
                del frontend.unsent[answer]
            elif self._takes(frontend, calls):
                self._fault(f"{frontend.name}: prompts {waiting} wait, and a router takes them")

    def _takes(self, frontend: FrontendProcess, calls: dict[Call, None]) -> bool:
        """Whether some stream's router has a pair, and the streams can be written. What was given
        to one that broke waits until that is seen.
        """
        mine = [call for call in calls if call.client is frontend.process]
        usable = any(
            book.greeted and book.has_pair and book.drains_since is None
            for book in map(self._book, mine)
        )
        broken = any(call.client is frontend.process and call.over_unseen for call in self._streams)
        return usable and not broken and not any(call.up.blocked for call in mine)

    def _let_go(self, call: Call, book: StreamBook, frontends: Iterable[FrontendProcess]) -> None:
        for frontend in frontends:
            if frontend.process is call.client and not frontend.process.stopped:
                states = [each.state for each in frontend.open_answers if each.state is not None]
                open_here = any(
                    first in book.submitted and self._last[frontend.name, first] is call
                    for state in states
                    for first in state.firsts
                )
                if not open_here and self._now() > (book.drains_since or 0.0) + _MOMENT:
                    self._fault(f"{frontend.name} keeps the stream of a router that drains")


def _unreadable(message: router_pb2.RouterMessage) -> Iterator[int]:
    """Workers of which a part of a message is no output."""
    begin = 0
    for worker, size in zip(message.part_worker, message.part_bytes, strict=True):
        try:
            parse(message.payload[begin : begin + size])
        except DecodeError:
            yield worker
        begin += size
