"""A worker's conduct, judged from outside: from what its core was told, the effects that it asked
for, and the frames that left.

A cancel acts at once, and an engine is asked to let go once. What is held leaves when it is
released and not before. Each leg is closed once, with nothing after it. A draining or full worker
takes nothing. Nothing of a silenced or cancelled leg is added any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from simulated.engine import ENGINE_REFUSES
from tandem.engine.base import Delta, Ending, EngineRequest
from tandem.errors import DrainingError, QueueFullError, TandemError
from tandem.hooks.deferred import Ruling
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import parse
from tandem.worker.core import outgoing
from tandem.worker.core.leg import Leg, LegStage, Start
from tandem.worker.core.machine import WorkerCore
from tandem.worker.core.outgoing import CHARACTER_BYTES, ROW_BYTES, Parcel, WaitingRow

LegKey = tuple[int, int]
"""A router's stream and its number of a leg."""


@dataclass(slots=True, eq=False)
class LegBook:
    link: int
    command: worker_pb2.StartLeg
    request_id: int
    deadline: float
    engine_holds: bool = True
    engine_asked: bool = False
    parks: bool = False
    """The engine is done with it, and keeps its KV for a request to come."""
    over: bool = False
    """Ended from outside: it is to be closed as soon as the engine has let go of it."""
    held: bool = False
    output_seen: bool = False
    retryable: bool | None = None
    """Whether it may be run elsewhere, once it has failed; None: it has not."""
    outcome: str = ""
    """How it must close, where that is known."""
    finished: bool = False
    """Its last word has left."""
    shown_most: int | None = None
    """Rows that may still leave of a leg that shows nothing more; None: any number."""


class WorkerRules:
    """Call `before` and `after` around each call of a core's `handle`, and `sent` for a frame."""

    def __init__(
        self,
        core: WorkerCore,
        *,
        prefill: bool,
        forgetful: bool,
        slots: int,
        most_held: int,
        fault: Callable[[str], None],
    ) -> None:
        self._forgetful, self._most_held = forgetful, most_held
        self._core, self._prefill, self._slots, self._fault = core, prefill, slots, fault
        self.legs: dict[int, LegBook] = {}
        self._by_number: dict[LegKey, LegBook] = {}
        self._closed: set[LegKey] = set()
        self._started: set[LegKey] = set()
        self._judged: set[LegKey] = set()
        self._context_only: set[LegKey] = set()
        self._parked: set[LegKey] = set()
        self._over: set[LegKey] = set()
        """Those that have said that their client has its end."""
        self._terminated: set[LegKey] = set()
        self._sequences: dict[tuple[int, int, int], LegBook] = {}
        self._bad_links: set[int] = set()
        """Of routers that use a leg's number twice."""
        self.draining = False
        self._straight: dict[int, int] = {}
        """By router's stream, bytes of rows that no parcel holds, from when it was last judged."""
        self._parcels: dict[int, list[tuple[Parcel, int]]] = {}
        """Those that waited then, and what they held."""
        self._now = 0.0
        self._take: dict[str, Callable[..., None]] = {
            "start": self._start,
            "release": self._release,
            "cancel": self._cancel,
            "link_down": self._link_down,
            "stepped": self._stepped,
            "ruled": self._ruled,
            "not_begun": self._not_begun,
            "judge_failed": self._judge_failed,
            "tick": self._tick,
            "drain": self._drain,
            "abandon": self._abandon,
            "engine_gone": self._engine_gone,
        }

    # --- what happened ---------------------------------------------------------------------------

    def before(self, now: float, batch: Iterable[Callable[[], None]]) -> None:
        self._now = now
        for happened in batch:
            told = happened if isinstance(happened, partial) else partial(happened)
            take = self._take.get(told.func.__name__)
            if take is not None:
                take(*told.args)

    def _start(self, wanted: Start) -> None:
        if (wanted.link, wanted.command.leg) in self._by_number:
            self._bad_links.add(wanted.link)

    def _release(self, link: int, leg: int) -> None:
        if book := self._by_number.get((link, leg)):
            book.held = False

    def _cancel(self, link: int, leg: int, reason: str) -> None:
        if book := self._by_number.get((link, leg)):
            book.over = True

    def _link_down(self, link: int) -> None:
        for book in self.legs.values():
            if book.link == link:
                book.over = True

    def _stepped(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            book = self.legs.get(delta.request_id)
            if book is None:
                continue
            book.output_seen |= bool(delta.token_ids)
            if delta.end is not None:
                book.engine_holds = False
                book.parks = book.command.context_only and delta.end is Ending.LENGTH
                if delta.end in (Ending.FAILED, Ending.CANCELLED) and not book.engine_asked:
                    cancelled = delta.end is Ending.CANCELLED
                    if not book.over:
                        book.outcome = "cancelled" if cancelled else "failed"
                    self._failed(book, repeatable=delta.retryable and not cancelled)

    def _failed(self, book: LegBook, *, repeatable: bool) -> None:
        """By its engine; what ended it before counts."""
        if not book.over:
            book.over = True
            book.retryable = repeatable and (self._prefill or not book.output_seen)

    def _ruled(self, rulings: Sequence[Ruling]) -> None:
        failed: list[LegBook] = []
        for ruling in rulings:
            book = self.legs.get(ruling.request_id)
            if book is None or book.over or book.shown_most is not None:
                continue
            if ruling.error is not None:
                book.over = True
                failed.append(book)
            elif ruling.reason is not None and not self._prefill:
                for sibling in self._siblings(book):
                    self._silence(sibling)
                    # What failed in the same moment waits for the router's cancel too.
                    sibling.over &= sibling not in failed

    def _siblings(self, book: LegBook) -> list[LegBook]:
        mine = _group(book)
        return [each for each in self.legs.values() if each is not book and _group(each) == mine]

    def _has_ended(self, book: LegBook) -> bool:
        """Its last word is on its way: what of it waits still leaves."""
        waits, command = self._core.outgoing(book.link), book.command
        draft = waits.drafts.get(command.destination)
        said = [] if draft is None else [finish.sequence for finish in draft.rest.finish]
        said += [
            each.sequence
            for each in waits.parcels
            if each.destination == command.destination and each.finish is not None
        ]
        return book.finished or command.sequence in said

    def _drafted(self, book: LegBook) -> int:
        """Rows of it that leave with the next frame."""
        draft = self._core.outgoing(book.link).drafts.get(book.command.destination)
        return 0 if draft is None else draft.sequences.count(book.command.sequence)

    def _silence(self, book: LegBook) -> None:
        """Nothing more of it may be shown than is on its way out already. What had ended by itself
        and is held has its release still before it (docs/design/0012).
        """
        held = {leg.request_id for leg in self._core.legs if leg.stage is LegStage.HELD}
        if book.shown_most is None and book.request_id not in held:
            waits, command = self._core.outgoing(book.link), book.command
            rows = self._drafted(book)
            for parcel in waits.parcels:
                if (parcel.destination, parcel.sequence) == (command.destination, command.sequence):
                    rows += len(parcel.rows)
            book.shown_most = rows

    def _not_begun(self, request_id: int, *_: object) -> None:
        if book := self.legs.pop(request_id, None):
            del self._by_number[book.link, book.command.leg]

    def _judge_failed(self, request_id: int, error: TandemError) -> None:
        if book := self.legs.get(request_id):
            book.over = True

    def _tick(self) -> None:
        for book in self.legs.values():
            if book.deadline <= self._now:
                book.over = True

    def _drain(self) -> None:
        self.draining = True

    def _abandon(self, error: TandemError) -> None:
        self.draining = True
        for book in self.legs.values():
            self._failed(book, repeatable=True)

    def _engine_gone(self, error: TandemError) -> None:
        for book in self.legs.values():
            self._failed(book, repeatable=True)
            book.engine_holds = False

    # --- what the core did -----------------------------------------------------------------------

    def after(self, asked: Iterable[partial[None]]) -> None:
        self._waiting()
        for book in self.legs.values():
            self._silence_ended(book)
        for effect in asked:
            match effect.func.__name__, *effect.args:
                case "begin", request, _, command, *_:
                    self._begin(request, command)
                case "cancel_engine", request_id:
                    self._cancel_engine(request_id)
                case "leg_closed", leg, _:
                    self._leg_closed(leg)
                case "leg_refused", _, _, error, _:
                    self._leg_refused(error)
                case "give_up", link, reason:
                    if link not in self._bad_links:
                        self._fault(f"a good router is given up: {reason}")
                    self._bad_links.discard(link)
        for link in self._bad_links:
            self._fault(f"the router of link {link} uses a number twice and is not given up")
        self._bad_links.clear()
        for leg in self._core.legs:
            if leg.held and leg.parcel is not None and len(leg.parcel.rows) > self._most_held:
                self._fault(f"leg {leg.number} holds {len(leg.parcel.rows)} rows")
        for book in self.legs.values():
            silent = book.over or book.shown_most is not None
            if silent and book.engine_holds and not book.engine_asked:
                self._fault(f"leg {book.command.leg} is over and its engine is not told")
            if book.over and not book.engine_holds:
                self._fault(f"leg {book.command.leg} is over and is not closed")

    def _silence_ended(self, book: LegBook) -> None:
        """What waits in a parcel of a leg that was ended from outside is shown to nobody."""
        silent = book.shown_most is not None or book.link not in self._core._state.links
        if book.over and not silent and not self._has_ended(book):
            book.shown_most = self._drafted(book)

    def _begin(self, request: EngineRequest, command: worker_pb2.StartLeg) -> None:
        if self.draining or len(self.legs) >= self._slots:
            self._fault(f"leg {command.leg} begins: draining or full")
        if command.parent_span or command.timeout_ms == 0:
            self._fault(f"leg {command.leg} begins as nobody asked")
        link = self._core._state.open[request.request_id].link
        book = LegBook(
            link,
            command,
            request.request_id,
            self._now + command.timeout_ms / 1000,
            held=command.hold_output,
        )
        if command.context_only:
            self._context_only.add((link, command.leg))
        self.legs[book.request_id] = self._by_number[link, command.leg] = book
        self._sequences[link, command.destination, command.sequence] = book

    def _cancel_engine(self, request_id: int) -> None:
        book = self.legs.get(request_id)
        if book is None or not (book.engine_holds or book.parks) or book.engine_asked:
            self._fault(f"request {request_id} is cancelled in vain, or twice")
        else:
            book.engine_asked = True

    def _leg_closed(self, leg: Leg) -> None:
        book = self.legs.pop(leg.request_id, None)
        if book is None or leg.closing is None:
            self._fault(f"request {leg.request_id} is closed twice")
            return
        del self._by_number[book.link, book.command.leg]
        if book.engine_holds:
            self._fault(f"leg {book.command.leg} is closed and its engine holds it")
        if book.parks and leg.parking is not None and not book.engine_asked:
            self._fault(f"leg {book.command.leg} says of no KV, which is kept for nobody")
        if book.outcome and leg.closing.outcome.value != book.outcome:
            self._fault(f"leg {book.command.leg} closes as {leg.closing.outcome}: {book.outcome}")
        failed = leg.closing.outcome.value == "failed"
        if failed and book.retryable not in (None, leg.closing.retryable):
            self._fault(f"leg {book.command.leg} fails, retryable: {leg.closing.retryable}")
        if book.held and leg.closing.by_itself:
            self._fault(f"leg {book.command.leg} is closed and was not released")

    def _leg_refused(self, error: TandemError) -> None:
        if error.message == ENGINE_REFUSES:
            return
        if isinstance(error, DrainingError) and not self.draining:
            self._fault("a leg is refused by a worker that does not drain")
        if isinstance(error, QueueFullError) and len(self.legs) < self._slots:
            self._fault("a leg is refused by a worker that is not full")

    # --- what left -------------------------------------------------------------------------------

    def sent(self, link: int, frame: worker_pb2.WorkerFrame) -> None:
        payloads = [(each.destination, parse(each.payload)) for each in frame.envelopes]
        self._sizes(link, [columns for _, columns in payloads])
        self._turns(link)
        for destination, columns in payloads:
            self._rows(link, destination, columns)
        for event in frame.events:
            self._event(link, event)
        if frame.HasField("load"):
            load = frame.load
            if (load.open_legs, load.draining) != (len(self._core), self.draining):
                self._fault(f"the load is reported as {load}, with {len(self._core)} open legs")

    def _sizes(self, link: int, payloads: list[common_pb2.TokenColumns]) -> None:
        """Parcels fill a frame up to its bound, and no row is larger than one may be. Scores wait
        in parcels where they are larger than a row.
        """
        most_row = outgoing.MAX_ROW_BYTES + ROW_BYTES + CHARACTER_BYTES
        sizes = [
            WaitingRow(count, text, (), None).size
            for columns in payloads
            for count, text in zip(columns.token_count, columns.text, strict=True)
        ]
        if sizes and max(sizes) > most_row:
            self._fault(f"a row of {max(sizes)} bytes leaves, and {most_row} are the most")
        scores = [len(finish.external_scores) for columns in payloads for finish in columns.finish]
        if sum(scores) > outgoing.FRAME_BYTES + max(scores, default=0):
            self._fault(f"scores of {sum(scores)} bytes leave in one frame")
        most = max(outgoing.FRAME_BYTES, self._straight.pop(link, 0)) + 2 * most_row
        if sum(sizes) > most:
            self._fault(f"a frame of {sum(sizes)} bytes leaves, and {most} are the most")

    def _turns(self, link: int) -> None:
        """No parcel has a second turn before each has had one."""
        waited = self._parcels.pop(link, [])
        moved = [before - self._held(parcel) for parcel, before in waited if before]
        one_turn = 2 * outgoing.MAX_ROW_BYTES + ROW_BYTES + CHARACTER_BYTES
        if moved and not min(moved) and max(moved) > one_turn:
            self._fault(f"a sequence sends {max(moved)} bytes while another that waits sends none")

    def _waiting(self) -> None:
        """Note what waits, before any of it leaves."""
        for link, waits in self._core._state.links.items():
            self._straight[link] = waits.backlog
            self._parcels[link] = [(parcel, self._held(parcel)) for parcel in waits.parcels]

    def _held(self, parcel: Parcel) -> int:
        """What a parcel's rows come to."""
        size = sum(row.size for row in parcel.rows)
        if parcel.size != size:
            self._fault(f"a parcel says {parcel.size} bytes and holds {size}")
        return size

    def _rows(self, link: int, destination: int, columns: common_pb2.TokenColumns) -> None:
        finished = {finish.sequence for finish in columns.finish}
        for sequence in (*columns.sequence, *finished):
            book = self._sequences.get((link, destination, sequence))
            if book is None:
                self._fault(f"a row of sequence {sequence} is for nobody")
                continue
            book.finished |= sequence in finished
            number = book.command.leg
            if (link, number) in self._closed:
                self._fault(f"a row of leg {number} comes after it was closed")
            if book.held or self._prefill:
                self._fault(f"a row of leg {number} is shown and was not released")
            if book.shown_most is not None and sequence not in finished:
                book.shown_most -= 1
                if book.shown_most < 0:
                    self._fault(f"a row of leg {number} is shown after its end")

    def _event(self, link: int, event: worker_pb2.LegEvent) -> None:
        key = link, event.leg
        kind = event.WhichOneof("event")
        if key in self._closed:
            self._fault(f"leg {event.leg}: {kind} comes after it was closed")
        if kind == "started":
            if key in self._started or self._prefill:
                self._fault(f"leg {event.leg} starts twice")
            self._started.add(key)
        elif kind == "verdict":
            if key in self._judged:
                self._fault(f"leg {event.leg} is judged twice")
            if not self._prefill and not event.verdict.terminate:
                self._fault(f"leg {event.leg} lets pass what nobody waits for")
            self._judged.add(key)
            if event.verdict.terminate:
                self._terminated.add(key)
            counts = self._prefill and event.verdict.terminate
            if (event.verdict.completion_tokens > 0) != counts:
                self._fault(f"leg {event.leg}: what prefill's hook terminates counts, and no other")
        elif kind == "parked":
            if key not in self._context_only or key in self._parked:
                self._fault(f"leg {event.leg} has parked KV that nobody asked for, or twice")
            self._parked.add(key)
        elif kind == "made":
            book = self._by_number.get(key)
            asked = book is None or book.command.say_made
            if key not in self._started or not asked or key in self._over:
                self._fault(f"leg {event.leg} says what nobody asked, or after its end")
            if event.made.over:
                self._over.add(key)
        else:
            self._closed.add(key)
            self._closed_rules(key, event.closed)

    def _closed_rules(self, key: LegKey, closed: worker_pb2.LegClosed) -> None:
        said = self._judged if self._prefill else self._started
        finished = closed.outcome == closed.OUTCOME_FINISHED
        leaves = key in self._context_only and finished and key not in self._terminated
        if leaves != (key in self._parked):
            self._fault(f"leg {key[1]} ends as {closed.outcome}, parked: {key in self._parked}")
        by_itself = (closed.OUTCOME_FINISHED, closed.OUTCOME_TERMINATED, closed.OUTCOME_REGENERATE)
        if closed.outcome in by_itself and key not in said and not self._forgetful:
            self._fault(f"leg {key[1]} ends well and has said nothing before")
        terminated = not self._prefill and closed.outcome == closed.OUTCOME_TERMINATED
        if terminated and key not in self._judged:
            self._fault(f"leg {key[1]} was terminated, and the router had no verdict")
        if not self._prefill and key in self._judged and finished:
            self._fault(f"leg {key[1]} was terminated and ends as if it was not")
        if closed.retryable and closed.outcome != closed.OUTCOME_FAILED:
            self._fault(f"leg {key[1]} is retryable and has not failed")
        if closed.retryable and key in self._started:
            self._fault(f"leg {key[1]} is retryable and has said that it started")


def _group(book: LegBook) -> tuple[int, int, int]:
    """The outputs of one request."""
    command = book.command
    return book.link, command.destination, command.sequence - command.output_index
