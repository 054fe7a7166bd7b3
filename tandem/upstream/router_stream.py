"""One stream to a router, seen from its sender: what waits to leave by it, and which requests are
open by it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from tandem.byte_budget import ByteBudget
from tandem.message_limits import fill_message
from tandem.upstream.router_view import RouterView
from tandem.v1 import router_pb2
from tandem.wire.outbox import Outbox
from tandem.wire.prompt_chunks import SentChunks, unpacked
from tandem.wire.silence import Silence

_MESSAGE_BYTES = 1024 * 1024
"""Prompts beyond this wait for the next message: the router reads each in one go."""
_MOST_ITEMS = 256
"""Submits, or cancels, in one message."""
_UNSEEN = RouterView()


class _Unsent(NamedTuple):
    submit: router_pb2.Submit
    chunks: bytes
    """The joined names of its prompt's chunks; empty: they are not known."""
    since: float


class RouterStream:
    """Made for one dial. It takes requests until its router drains; it ends once."""

    def __init__(self, budget: ByteBudget, clock: Callable[[], float] = time.monotonic) -> None:
        """`budget`: prompts that have not left take of it, beside those of their requests. What
        they wait here, in seconds by `clock`, is taken off the time that their router has.
        """
        self.outbox: Outbox[router_pb2.FrontendMessage] = Outbox(self._take)
        self.open: set[int] = set()
        """First sequences of the requests that went by it and are not released."""
        self.opened = False
        """The router has greeted."""
        self.draining = False
        self.fleet = router_pb2.Fleet()
        self.views: dict[str, RouterView] = {}
        """The fleet of each model that requests may be for."""
        self.silence: Silence | None = None
        """Watches whether the router says anything; None: the router promised no heartbeats."""
        self.over = asyncio.Event()
        """Set when the stream takes nothing new: the router drains, or the stream has ended."""
        self._submits: dict[int, _Unsent] = {}
        self._clock = clock
        self._unsent = budget.allotment()
        self.chunks = SentChunks()
        """What the router keeps of the prompts that went by it."""
        self._cancels: list[int] = []
        self._complaints: dict[int, str] = {}
        """What could not be read, by worker."""
        self._on_empty: Callable[[], object] | None = None

    @property
    def silent(self) -> bool:
        """Whether the router is overdue with a heartbeat."""
        return self.silence is not None and self.silence.seconds > 0

    def view_of(self, model: str) -> RouterView:
        return self.views.get(model, _UNSEEN)

    def submit(self, submits: Sequence[router_pb2.Submit], chunks: Sequence[bytes] = ()) -> None:
        """Send without waiting. `chunks`: the joined names of each prompt's chunks, or nothing
        where they are not known. Raises QueueFullError, and sends nothing, while too much waits.
        """
        self._unsent.admit(sum(len(submit.task) for submit in submits))
        now = self._clock()
        for submit, names in zip(submits, chunks or [b""] * len(submits), strict=True):
            self.open.add(submit.first_sequence)
            self._submits[submit.first_sequence] = _Unsent(submit, names, now)
        self.outbox.notify()

    def release(self, first_sequences: Sequence[int], *, cancel: bool) -> None:
        """Forget open requests. `cancel` tells the router, unless their submit has not left."""
        for first in first_sequences:
            if first not in self.open:
                continue
            self.open.remove(first)
            if waiting := self._submits.pop(first, None):
                self._unsent.give_back(len(waiting.submit.task))
            elif cancel:
                self._cancels.append(first)
                self.outbox.notify()
        self._check_empty()

    def complain(self, worker: int, fault: str) -> None:
        """Tell the router that output of a worker could not be read; the first fault is said."""
        self._complaints.setdefault(worker, fault)
        self.outbox.notify()

    def unsent(self, first_sequence: int) -> bool:
        """Whether a submit is certain not to have reached the router."""
        return first_sequence in self._submits

    def drain(self) -> list[int]:
        """The router takes nothing new; returns first sequences of submits that have not left."""
        self.draining = True
        self.over.set()
        unsent = list(self._submits)
        self._submits.clear()
        self._unsent.give_back(self._unsent.size)
        self.open.difference_update(unsent)
        return unsent

    def close(self) -> None:
        """The stream has ended: submits that have not left never will by it."""
        self._submits.clear()
        self._unsent.close()

    def when_empty(self, call: Callable[[], object]) -> None:
        """Call `call` once, as soon as nothing is open."""
        self._on_empty = call
        self._check_empty()

    def _check_empty(self) -> None:
        if self._on_empty is not None and not self.open:
            on_empty, self._on_empty = self._on_empty, None
            on_empty()

    def _leave(self, first_sequence: int) -> router_pb2.Submit:
        """Take a submit off the waiting ones, with its wait and known chunks taken off."""
        submit, chunks, since = self._submits.pop(first_sequence)
        waited_ms = round((self._clock() - since) * 1000)
        submit.timeout_ms = max(1, submit.timeout_ms - waited_ms)
        submit.known_prompt, submit.task = self.chunks.shorten(submit.task, unpacked(chunks))
        return submit

    def _take(self) -> router_pb2.FrontendMessage | None:
        cancels, self._cancels = self._cancels[:_MOST_ITEMS], self._cancels[_MOST_ITEMS:]
        sizes = (len(waiting.submit.task) for waiting in self._submits.values())
        count, size = fill_message(sizes, _MESSAGE_BYTES, _MOST_ITEMS)
        submits = [self._leave(first) for first in list(islice(self._submits, count))]
        self._unsent.give_back(size)
        if self._submits or self._cancels:
            self.outbox.notify()
        complaints, self._complaints = self._complaints, {}
        if not submits and not cancels and not complaints:
            return None
        message = router_pb2.FrontendMessage(submit=submits, cancel=cancels)
        for worker, fault in complaints.items():
            message.complaint.add(worker=worker, fault=fault)
        return message
