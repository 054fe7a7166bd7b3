"""Output as a broken worker sends it: rows that are lost, come again, are of another sequence or
have numbers that cannot be, columns that disagree, bytes that are none.

Whose output it was is noted: they may fail, and nobody else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from simulated.dice import Dice
from simulated.script import request_of
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import parse
from tandem_router.core.actions import StartLeg

KINDS = (
    "bytes",
    *("column", "column"),
    *("lost", "lost"),
    "again",
    "another",
    *("foreign", "foreign", "foreign"),
    "huge",
)
"""How a payload is spoilt. What needs more to be noticed comes more often."""
LATEST = 4
"""Sequences of another worker that may be named: those that began last, and so may run."""
COLUMNS = ("sequence", "offset", "token_count", "text")


class Garbler:
    """Of one router: what it reads of its workers."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._ran: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        """Requests by sequence, by the frontend and the worker that they ever ran on."""
        self._touched: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
        """Sequences of a frontend that were named in what a worker spoilt."""
        self._unreadable: set[bytes] = set()
        self._garbled: set[bytes] = set()
        self._lies: defaultdict[tuple[int, int], set[bool]] = defaultdict(set)
        """Of a frontend's sequence: a row was taken away (True), or another's given (False)."""

    def started(self, action: StartLeg, trace_id: str, waiting: Iterable[bytes]) -> None:
        """A leg was started while payloads wait for its frontend. It leaves in one message with
        them: of what cannot be read there nobody knows that it came before.
        """
        request = request_of(trace_id)
        self._ran[action.command.destination, action.worker][action.command.sequence] = request
        if not self._unreadable.isdisjoint(waiting):
            self._dice.spoilt.add(request)

    def garble(self, address: str, envelope: worker_pb2.Envelope) -> None:
        """Change it, and note the requests whose output that spoils."""
        touched = self._touched[envelope.destination, address]
        touched |= _named(envelope.payload)
        ran = self._ran[envelope.destination, address]
        others = [
            sequence
            for (frontend, worker), there in self._ran.items()
            if frontend == envelope.destination and worker != address
            for sequence in list(there)[-LATEST:]
            if sequence not in ran
        ]
        rows = Counter(_rows(envelope.payload))
        spoilt, seen, got = self._change(envelope, set(ran), others)
        self._dice.misled.update(ran[each] for each in got if each in ran)
        self._dice.spoilt.update(ran[each] for each in spoilt if each in ran)
        self._garbled.add(envelope.payload)
        if seen:
            self._unreadable.add(envelope.payload)
        else:
            rows.subtract(_rows(envelope.payload))
            self._note_lies(envelope.destination, rows, ran)
        touched |= _named(envelope.payload)

    def _note_lies(self, frontend: int, taken: Counter[int], ran: dict[int, int]) -> None:
        """`taken`: how many rows each sequence lost; less than none: it was given some."""
        for sequence in ran.keys() & taken.keys():
            lies = self._lies[frontend, sequence]
            lies.update([taken[sequence] > 0] if taken[sequence] else [])
            if len(lies) > 1:
                self._dice.deceived.add(ran[sequence])

    def is_doubtful(self, address: str, envelope: worker_pb2.Envelope) -> bool:
        """Whether it was spoilt, or follows what was."""
        touched = self._touched.get((envelope.destination, address))
        if touched is None:
            return False
        return envelope.payload in self._garbled or not touched.isdisjoint(_named(envelope.payload))

    def joined(self, address: str, frontend: int, payloads: list[bytes]) -> None:
        """A worker's payloads leave in one message, as one: what spoils one of them spoils all."""
        if not self._garbled.isdisjoint(payloads):
            ran = self._ran[frontend, address]
            named = {sequence for payload in payloads for sequence in _named(payload)}
            self._dice.spoilt.update(ran[each] for each in named if each in ran)

    def _change(
        self, envelope: worker_pb2.Envelope, mine: set[int], others: list[int]
    ) -> tuple[set[int], bool, set[int]]:
        """Sequences that it spoils, whether that can be seen, and those that get others' rows."""
        source = self._dice.random
        columns = parse(envelope.payload)
        named = _named(envelope.payload)
        kind = source.choice(KINDS)
        if kind == "bytes" or not columns.sequence:
            envelope.payload += b"\xff"
            return mine | named, True, set()
        place = source.randrange(len(columns.sequence))
        # Where there are ids, they no longer belong to the rows.
        spoilt, seen = named if columns.token_id else {columns.sequence[place]}, False
        got: set[int] = set()
        if kind == "column":
            texts, numbers = columns.text, (columns.token_count, columns.offset)
            column = source.choice((texts, texts, *numbers))
            del column[min(place, max(0, len(column) - 2))]  # there may be a row behind it
            spoilt, seen = named, True
        elif kind == "lost":
            _keep(columns, [each for each in range(len(columns.sequence)) if each != place])
        elif kind == "again":
            _keep(columns, [*range(len(columns.sequence)), place])
        elif kind == "huge":
            number = source.choice((columns.token_count, columns.offset))
            number[place] = 2**32 - 1
        else:
            into = (others if kind == "foreign" else sorted(mine)) or [2**63]
            columns.sequence[place] = source.choice(into)
            got = {columns.sequence[place]} & mine
            spoilt |= got
        envelope.payload = columns.SerializeToString()
        return spoilt, seen, got


def _rows(payload: bytes) -> list[int]:
    """The sequence of each row, where that can be read."""
    try:
        return list(parse(payload).sequence)
    except DecodeError:
        return []


def _named(payload: bytes) -> set[int]:
    """Sequences that a payload says something of."""
    try:
        columns = parse(payload)
    except DecodeError:
        return set()
    return {*columns.sequence, *(finish.sequence for finish in columns.finish)}


def _keep(columns: common_pb2.TokenColumns, places: Iterable[int]) -> None:
    """Keep those rows alone. Token ids stay as they are, and so disagree with them."""
    for name in COLUMNS:
        column = getattr(columns, name)
        kept = [column[place] for place in places]
        del column[:]
        column.extend(kept)
