"""One kind of fault, under load: what is asked meanwhile, and what came of it."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaotic.book import Book, Oracle
from chaotic.fleet import Fleet
from chaotic.load import Load

CLIENTS = 12
BEFORE_SECONDS = 1.0
AFTER_SECONDS = 1.0

Strike = Callable[[Fleet, random.Random], Awaitable[None]]
"""Calls `Fleet.struck` when the fault begins. Returns once it is over and all runs again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault."""

    name: str
    strike: Strike
    codes: frozenset[str] = frozenset()
    """With what requests may fail."""
    shows: Callable[[Row], bool] | None = None
    """Whether the fault was noticed at all."""
    most_failed: float = 1.0
    """Share of the requests."""
    left_out: Callable[[], str] = str
    """Why this machine cannot have it, or nothing."""
    decode: int = 2
    """Decode workers of its stack."""
    leave: float = 0.0
    """Share of the requests whose clients go away."""
    resume: bool = False
    """Requests ask for another pair of workers where theirs is lost."""


@dataclass
class Row:
    """What came of one kind."""

    name: str
    requests: int = 0
    in_flight: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Requests whose clients went away."""
    retried: int = 0
    resumed: int = 0
    longest_stall: float = 0.0
    wrong: int = 0
    hung: int = 0
    faults: list[str] = field(default_factory=list)
    """What should not be: each makes the run fail."""


def fails(row: Row) -> bool:
    """Some request failed."""
    return row.failed.total() > 0


def retries(row: Row) -> bool:
    """Something was run once more."""
    return row.retried > 0


def leaves(row: Row) -> bool:
    """Some client went away."""
    return row.left > 0


def resumes(row: Row) -> bool:
    """Another pair of workers ended what a lost one had begun."""
    return row.resumed > 0


def stalls(seconds: float) -> Callable[[Row], bool]:
    """Some client heard nothing for so long."""
    return lambda row: row.longest_stall >= seconds


async def endure(kind: Kind, fleet: Fleet, *, seed: int, oracle: Oracle) -> Row:
    """The load runs, the fault strikes, and all that was asked ends."""
    rng = random.Random(f"{seed} {kind.name}")
    book = Book(oracle)
    load = Load(fleet.stack.url, book, rng, leave=kind.leave, resume=kind.resume)
    fleet.struck, fleet.burst = book.struck, load.burst
    retried = Counted(fleet, "tandem_router_retries_total")
    resumed = Counted(fleet, "tandem_router_resumed_total", outcome="finished")
    faults: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(CLIENTS))
        try:
            async with asyncio.timeout(fleet.ready_seconds):
                while book.ended < CLIENTS:  # noqa: ASYNC110 - what a busy machine makes late
                    await asyncio.sleep(0.05)
            await asyncio.sleep(BEFORE_SECONDS + rng.random())
            await kind.strike(fleet, rng)
            await asyncio.sleep(AFTER_SECONDS)
        except Exception:  # noqa: BLE001 - the load ends first
            faults.append(f"the fault could not be made: {traceback.format_exc()}")
        finally:
            load.stop()
    row = Row(
        name=kind.name,
        requests=book.requests,
        in_flight=book.in_flight,
        failed=book.failed,
        left=book.left,
        retried=retried.since(),
        resumed=resumed.since(),
        longest_stall=book.longest_stall,
        wrong=len(book.wrong),
        hung=book.hung,
        faults=[*faults, *book.wrong[:5]],
    )
    row.faults += [*judge(kind, row), *await fleet.still_open()]
    await fleet.recover()
    return row


def judge(kind: Kind, row: Row) -> list[str]:
    """What is not as the kind says."""
    faults = [f"{code} was not to be expected" for code in sorted(row.failed.keys() - kind.codes)]
    if row.hung:
        faults.append(f"{row.hung} requests hang")
    if row.failed.total() > kind.most_failed * row.requests:
        faults.append(f"{row.failed.total()} of {row.requests} requests failed")
    if row.requests == row.failed.total():
        faults.append("no request was answered")
    if not row.in_flight:
        faults.append("nothing was in flight")
    if kind.shows is not None and not row.faults and not kind.shows(row):
        faults.append("nobody noticed the fault")
    return faults


class Counted:
    """How far a count of the router's has come; it counts from 0 after its own start."""

    def __init__(self, fleet: Fleet, name: str, **labels: str) -> None:
        self._fleet = fleet
        self._name, self._labels = name, labels
        self._began = self._read()

    def since(self) -> int:
        now = self._read()
        process, before = self._began
        return now[1] - before if now[0] == process else now[1]

    def _read(self) -> tuple[int, int]:
        count = self._fleet.metric("router", self._name, **self._labels)
        return self._fleet.stack.components["router"].pid, int(count)
