"""What waits to be sent to one router: rows by the frontend they are for, and events of legs.

Rows are written into plain columns, so a token costs no object of its own. Output that comes all at
once (it was held for a release, by a hook, or for a classifier) waits in a parcel of its leg, and
goes into frames of bounded size bit by bit, each leg in its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.byte_budget import Allotment
from tandem.errors import InternalError, TandemError
from tandem.message_limits import fill_message
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import Draft

MAX_BACKLOG_BYTES = 16 * 1024 * 1024
"""What may wait for a router that does not read, parcels left out; a frame must also stay below
gRPC's limit. What one step brings one leg outside a parcel is at most a row."""
FRAME_BYTES = 128 * 1024
"""Parcels fill a frame up to it: whoever reads it does so in one go."""
MAX_ROW_BYTES = 16 * 1024
"""A row that is larger goes into a parcel, cut."""
MAX_PARCEL_BYTES = 64 * 1024 * 1024
"""What may wait of one sequence: more than 300,000 tokens with twenty alternatives each."""
TOKEN_BYTES = 300
"""What a token costs that classifiers hold: an estimate of its piece, its text and its id."""
ALTERNATIVE_BYTES = 112
"""Cost of each alternative token beside that."""
ROW_BYTES = 32
"""What a row costs beside its text, ids and log-probabilities; an estimate."""
CHARACTER_BYTES = 4
"""At most."""
_FAILED = worker_pb2.LegClosed.OUTCOME_FAILED


class WaitingRow(NamedTuple):
    """One row that waits in a parcel, or log-probabilities of the prompt."""

    token_count: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None
    place: int | None = None
    """How many tokens of the prompt stand before the row's; None: the row is output."""

    @property
    def size(self) -> int:
        """Bytes on the wire, roughly and never too few."""
        size = ROW_BYTES + CHARACTER_BYTES * len(self.text) + 4 * self.token_count
        if self.logprobs:
            size += self.token_count * logprobs_bytes(self.logprobs)
        return size

    def cut(self, parts: int) -> list[WaitingRow]:
        """The row as `parts` rows, each with its share of the tokens."""
        count, text, token_ids, logprobs, place = self
        rows = []
        for part in range(parts):
            first, last = count * part // parts, count * (part + 1) // parts
            rows.append(
                WaitingRow(
                    last - first,
                    text[len(text) * part // parts : len(text) * (part + 1) // parts],
                    token_ids[first:last],
                    None if logprobs is None else logprobs[first:last],
                    None if place is None else place + first,
                )
            )
        return rows


@dataclass(slots=True, eq=False, kw_only=True)
class Parcel:
    """What waits of one leg, in order."""

    destination: int
    sequence: int
    shows_ids: bool
    offset: int
    """Rows of the sequence before its own."""
    rows: deque[WaitingRow] = field(default_factory=deque)
    size: int = 0
    """Bytes of the rows, roughly."""
    report: common_pb2.PhaseReport | None = None
    finish: common_pb2.Finish | None = None
    events: list[worker_pb2.LegEvent] = field(default_factory=list)
    """Events for the router behind the rows: prefill's verdict, that the leg is closed."""
    sent: bool = False
    """Every row has left; no row can be added."""
    allotment: Allotment | None = None
    """The parcel's share of the budget, once the parcel is more than a frame holds."""

    def add(self, row: WaitingRow) -> int:
        """Behind the others; a large one in several. Returns in how many."""
        parts = row.cut(-(-row.size // MAX_ROW_BYTES))
        self.rows += parts
        self.size += sum(part.size for part in parts)
        return len(parts)

    def move(self, draft: Draft) -> int:
        """The first rows go into a frame, about MAX_ROW_BYTES of them. Returns their size."""
        count, moved = fill_message((row.size for row in self.rows), MAX_ROW_BYTES)
        self.size -= moved
        for _ in range(count):
            row = self.rows.popleft()
            if row.place is None:
                write(draft, self.sequence, self.offset, row, shows_ids=self.shows_ids)
                self.offset += 1
            else:
                write_prompt(draft, self.sequence, row)
        if self.allotment is not None:
            self.allotment.hold(min(self.size, self.allotment.size))
        return moved

    def spoil(self, error: TandemError) -> None:
        """Nothing more of it is sent, and where its leg has ended already, that end is an error."""
        self.rows.clear()
        self.drop()
        self.report = self.finish = None
        if self.events and self.events[-1].HasField("closed"):
            closed = worker_pb2.LegClosed(outcome=_FAILED, error=error.to_proto())
            self.events = [worker_pb2.LegEvent(leg=self.events[-1].leg, closed=closed)]
        else:
            self.events.clear()

    def drop(self) -> None:
        """Discard the waiting rows."""
        if self.allotment is not None:
            self.allotment.close()

    def end(self, draft: Draft, events: list[worker_pb2.LegEvent]) -> int:
        """Send the events behind the last row. Returns their size."""
        self.sent = True
        self.drop()
        if self.report is not None:
            draft.rest.report.append(self.report)
        if self.finish is not None:
            draft.rest.finish.append(self.finish)
        events += self.events
        return 0 if self.finish is None else self.finish.ByteSize()


@dataclass(slots=True, eq=False)
class Outgoing:
    """What was added since the last `take` leaves with the next one, parcels in several."""

    allotment: Allotment
    """For what waits outside of parcels, once it is more than a frame holds."""
    drafts: dict[int, Draft] = field(default_factory=dict)
    """Rows by the number of the frontend."""
    events: list[worker_pb2.LegEvent] = field(default_factory=list)
    parcels: deque[Parcel] = field(default_factory=deque)
    """Released ones. Rows of their legs go behind theirs."""
    backlog: int = 0
    """Bytes that wait outside of parcels, roughly."""
    unsendable: list[tuple[int, int]] = field(default_factory=list)
    """Destinations and sequences of which a row could not be written by the last `take`."""

    @property
    def waits(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self.drafts or self.events or self.parcels)

    def draft(self, destination: int) -> Draft:
        """Where rows for a frontend are written."""
        draft = self.drafts.get(destination)
        if draft is None:
            draft = self.drafts[destination] = Draft()
        return draft

    def take(self) -> tuple[dict[int, Draft], list[worker_pb2.LegEvent]]:
        """What makes the next frame. What is added from now on is for a later one."""
        room = FRAME_BYTES - self.backlog
        parcels = self.parcels
        while parcels:
            parcel = parcels.popleft()
            draft = self.draft(parcel.destination)
            try:
                room -= parcel.move(draft)
            except Exception:  # noqa: BLE001 - its own data: no other leg may suffer
                parcel.spoil(InternalError("the output of this sequence cannot be written"))
                self.unsendable.append((parcel.destination, parcel.sequence))
            if parcel.rows:
                parcels.append(parcel)
            else:
                room -= parcel.end(draft, self.events)
            if room <= 0:
                break
        taken = self.drafts, self.events
        self.drafts, self.events, self.backlog = {}, [], 0
        if self.allotment.size:
            self.allotment.hold(0)
        return taken

    def gone(self) -> None:
        """The router is gone: nothing is sent any more."""
        self.allotment.close()
        for parcel in self.parcels:
            parcel.drop()


def logprobs_bytes(logprobs: Sequence[TokenLogprob]) -> int:
    """Bytes of the log-probabilities of one token."""
    return 8 + 8 * len(logprobs[0][1])


def write(draft: Draft, sequence: int, offset: int, row: WaitingRow, *, shows_ids: bool) -> None:
    """A row of a parcel, into a frame."""
    count, text, token_ids, logprobs, _ = row
    draft.add(sequence, offset, count, text, token_ids if shows_ids else ())
    if logprobs is not None and count:
        draft.rest.logprobs.append(encoded_logprobs(sequence, token_ids, logprobs))


def write_prompt(draft: Draft, sequence: int, row: WaitingRow) -> None:
    """Log-probabilities of the prompt, into a frame."""
    assert row.logprobs is not None
    assert row.place is not None
    part = encoded_logprobs(sequence, row.token_ids, row.logprobs)
    part.place = row.place
    draft.rest.prompt_logprobs.append(part)


def encoded_logprobs(
    sequence: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> common_pb2.TokenLogprobs:
    """The log-probabilities of one row as their message."""
    count = min(len(top) for _, top in logprobs)
    alternatives = [each for _, top in logprobs for each in top[:count]]
    return common_pb2.TokenLogprobs(
        sequence=sequence,
        token_id=token_ids,
        logprob=[chosen for chosen, _ in logprobs],
        top_count=count,
        top_token_id=[token_id for token_id, _ in alternatives],
        top_logprob=[logprob for _, logprob in alternatives],
    )
