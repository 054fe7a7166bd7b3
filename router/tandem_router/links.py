"""What waits to be sent to one peer: bounded drafts that feed one outgoing stream each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.errors import SlowClientError, TandemError
from tandem.message_limits import MAX_KEPT_BYTES, fill_message
from tandem.v1 import router_pb2, worker_pb2
from tandem.wire import frames
from tandem.wire.outbox import Outbox
from tandem.wire.prompt_chunks import SentChunks
from tandem_router import translate
from tandem_router.core import actions
from tandem_router.inspection import Inspection

log = logging.getLogger(__name__)

MESSAGE_BYTES = 128 * 1024
"""A message takes no more than this and one item, as whoever reads it does so in one go; what is
left follows in the next."""
MOST_ITEMS = 256
"""Legs that are started, or cancelled, in one message."""
_ITEM_BYTES = 128
"""Counted for an item beside its payload."""
HEARTBEAT_SECONDS = 1.0
"""How often each frontend is told of the fleet: the router's loop runs."""
STALL_SECONDS = 5.0
"""A frontend that takes no message for so long, past its bound, does not read."""
_UNCOUNTED_BYTES = 64 * 1024
"""What waits for a frontend that reads is less: it takes nothing of the budget."""
_HARD_BOUND = 4
"""How many times its bound a frontend's backlog may be, however the frontend reads."""
_LEAST_LOOKS = 3
"""After a pause of the router's own, a peer has had no time to read."""


class Patience:
    """For how long a peer has taken none of what waits for it."""

    def __init__(self) -> None:
        self.moved = True
        """The peer has taken a message; to be set whenever it takes one."""
        self._since = 0.0
        self._looks = 0

    def over(self, now: float, seconds: float) -> bool:
        """Whether nothing has moved for so long. To be asked again and again while something
        waits.
        """
        if self.moved:
            self.moved, self._since, self._looks = False, now, 0
        self._looks += 1
        return now - self._since >= seconds and self._looks >= _LEAST_LOOKS


class Sink(Protocol):
    """Where output for one frontend number goes."""

    def add_run(self, sequence: int, worker: int) -> None:
        """The sequence's decode leg runs on the worker of that number from now on."""

    def add_queue_wait(self, action: actions.QueueWait) -> None: ...

    def add_waiting(self, action: actions.TellWait) -> None: ...

    def add_payload(self, worker: int, payload: bytes) -> str:
        """Take output of a worker: a serialised TokenColumns. Returns what is wrong with it, where
        that was looked at; empty: nothing.
        """

    def add_lost(self, worker: int) -> None:
        """Tell the frontend that some output of a worker is missing."""

    def add_end(self, action: actions.EndSequence) -> None: ...

    def add_voucher(self, action: actions.GiveVoucher, signed: bytes) -> None:
        """A context-only sequence has ended, and this is what it left."""

    def set_fleet(self, fleet: router_pb2.Fleet) -> None:
        """Said when it changes, and at each heartbeat."""

    def set_draining(self) -> None:
        """Nothing new is admitted any longer; what is open goes on."""

    def fail(self, error: TandemError) -> None:
        """Give the frontend up: nothing more is sent."""

    def close(self) -> None:
        """Send the messages that wait, then end the stream."""

    def gone(self) -> None:
        """The stream has ended: what waits is dropped."""


class FrontendLink:
    """The way to a connected frontend. Payloads are joined as bytes and never parsed."""

    def __init__(
        self,
        max_backlog_bytes: int,
        budget: ByteBudget,
        *,
        prompt_chunks: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`budget`: what waits because the frontend does not read takes of it. `prompt_chunks`: how
        many chunks of its prompts are kept.
        """
        self._prompt_chunks = prompt_chunks
        self.outbox: Outbox[bytes] = Outbox(self._take)
        self.over = asyncio.Event()
        """Set to close the stream, with `failure` or in good order."""
        self.failure: TandemError | None = None
        self._max_backlog = max_backlog_bytes
        self._unwatched = min(max_backlog_bytes, _UNCOUNTED_BYTES)
        self._clock = clock
        self._patience = Patience()
        self._backlog = 0
        self._held = budget.allotment(self._end_for_room)
        """Bytes of the budget that the backlog takes, once it exceeds `_unwatched`."""
        self._payloads: list[frames.Part] = []
        """Each with the number of its worker."""
        self._draft = router_pb2.RouterMessage()
        """Waits to be said beside payloads, ends, the fleet and lost workers."""
        self._lost: set[int] = set()
        self._ends: list[router_pb2.SequenceEnd] = []
        self._fleet: router_pb2.Fleet | None = None
        self._says_more = False
        """Something beside payloads waits."""

    def add_run(self, sequence: int, worker: int) -> None:
        """Leaves at once, before any output: a frontend that loses this router sends again what
        was not said to run.
        """
        self._draft.run_sequence.append(sequence)
        self._draft.run_worker.append(worker)
        self._say_more()

    def add_queue_wait(self, action: actions.QueueWait) -> None:
        self._draft.queue_wait.append(translate.queue_wait(action))
        self._say_more()

    def add_waiting(self, action: actions.TellWait) -> None:
        self._draft.waiting.append(router_pb2.Waiting(sequence=action.sequence, what=action.what))
        self._say_more()

    def add_payload(self, worker: int, payload: bytes) -> str:
        if self.failure is None:
            self._payloads.append((worker, payload))
            self._grow(len(payload))
        return ""

    def add_lost(self, worker: int) -> None:
        self._lost.add(worker)
        self._say_more()

    def add_end(self, action: actions.EndSequence) -> None:
        self._add_end(translate.sequence_end(action))

    def add_voucher(self, action: actions.GiveVoucher, signed: bytes) -> None:
        self._add_end(router_pb2.SequenceEnd(sequence=action.sequence, voucher=signed))

    def set_fleet(self, fleet: router_pb2.Fleet) -> None:
        self._fleet = fleet
        self._say_more()

    def set_draining(self) -> None:
        self._draft.draining = True
        self._say_more()

    def fail(self, error: TandemError) -> None:
        self.failure = error
        self.gone()
        self.over.set()

    def close(self) -> None:
        self.outbox.close()

    def gone(self) -> None:
        self._payloads, self._ends, self._backlog = [], [], 0
        self._draft.Clear()
        self._lost.clear()
        self._held.close()

    def _add_end(self, end: router_pb2.SequenceEnd) -> None:
        if self.failure is None:
            self._ends.append(end)
            self._says_more = True
            self._grow(_end_bytes(end))

    def _say_more(self) -> None:
        self._says_more = True
        self.outbox.notify()

    def _grow(self, size: int) -> None:
        self._backlog += size
        if self._backlog > self._unwatched:
            self._bound()
        self.outbox.notify()

    def _bound(self) -> None:
        """More waits than for one that reads."""
        fits = self._held.hold(self._backlog)
        if fits and self._backlog > self._max_backlog and self._does_not_read():
            self.fail(SlowClientError("the frontend does not read its stream"))

    def _end_for_room(self) -> None:
        """There is no memory for more output: end the link, which holds the most of all."""
        self.fail(SlowClientError("the frontend reads too slowly: there is no memory for more"))

    def _does_not_read(self) -> bool:
        """One large answer passes the bound too, and leaves in pieces."""
        stalled = self._patience.over(self._clock(), STALL_SECONDS)
        return stalled or self._backlog > _HARD_BOUND * self._max_backlog

    def _take(self) -> bytes | None:
        """The next message, a RouterMessage as it is sent; None: nothing waits."""
        self._patience.moved = True
        if self._says_more or self._held.size:  # as of any backlog that does not fit a message
            return self._take_all()
        payloads, self._payloads, self._backlog = self._payloads, [], 0
        if len(payloads) == 1:
            return frames.write_part(*payloads[0])
        return frames.join_parts(payloads).SerializeToString() if payloads else None

    def _take_all(self) -> bytes | None:
        """Whatever waits, or the first of it."""
        payloads, ends, fleet, draft = self._payloads, self._ends, self._fleet, self._draft
        self._fleet, self._draft = None, router_pb2.RouterMessage()
        if self._backlog <= MESSAGE_BYTES:
            self._payloads, self._ends, self._backlog = [], [], 0
        else:
            payloads, ends = self._take_some()
        self._says_more = False
        if self._held.size > self._backlog:
            self._held.hold(self._backlog)
        message = frames.join_parts(payloads)
        message.MergeFrom(draft)
        message.ends.extend(ends)
        message.lost.extend(sorted(self._lost))
        self._lost.clear()
        if fleet is not None:
            message.fleet.CopyFrom(fleet)
            message.beat_ms = round(HEARTBEAT_SECONDS * 1000)
            message.prompt_chunks = self._prompt_chunks
        return message.SerializeToString() or None

    def _take_some(self) -> tuple[list[frames.Part], list[router_pb2.SequenceEnd]]:
        """The first of a large backlog. Ends come after all payloads: they apply after them."""
        sizes = (len(payload) for _, payload in self._payloads)
        count, size = fill_message(sizes, MESSAGE_BYTES)
        payloads, self._payloads = self._payloads[:count], self._payloads[count:]
        ends: list[router_pb2.SequenceEnd] = []
        if not self._payloads:
            count, of_ends = fill_message(map(_end_bytes, self._ends), MESSAGE_BYTES)
            ends, self._ends = self._ends[:count], self._ends[count:]
            size += of_ends
        self._backlog -= size
        if self._payloads or self._ends:
            self.outbox.notify()
        return payloads, ends


def _end_bytes(end: router_pb2.SequenceEnd) -> int:
    return _ITEM_BYTES + len(end.error.message) + len(end.stop_reason) + len(end.voucher)


class WorkerLink:
    """The way to a connected worker. Starts leave before releases and cancels, so that a worker
    knows each leg that it is told of.

    What waits holds no copy of a task: those are the requests' own, which admission bounds. So
    however much waits, it leaves in pieces as fast as the worker reads.
    """

    def __init__(self, complaints: Complaints | None = None) -> None:
        self.complaints = complaints or Complaints(log)
        """Log lines that name the worker's unreadable output, over all streams to its address."""
        self.address = ""
        """The worker's, from `Relay.worker_up` on, like the next two."""
        self.number = 0
        """By which frontends know the worker."""
        self.shows = False
        """Output comes from here: it is a decode worker."""
        self.inspection: Inspection | None = None
        """Reads what comes, for a time after a frontend's complaint."""
        self.outbox: Outbox[worker_pb2.WorkerCommand] = Outbox(self._take)
        self.patience = Patience()
        self.keeps_tasks = True
        """A task that several legs run is said to this worker once."""
        self.chunks = SentChunks()
        """What the worker keeps of the prompts that went by the stream."""
        self._kept: dict[int, int] = {}
        """Sizes of the tasks that the worker keeps, by the number of the request."""
        self._kept_bytes = 0
        self._starts: deque[actions.StartLeg] = deque()
        """Legs to be started. The task of a leg's command is only the overlay of the request's."""
        self._releases: list[int] = []
        self._cancels: list[worker_pb2.CancelLeg] = []
        self._over: list[int] = []
        """Requests whose tasks no further leg runs."""
        self._paired = False
        self.given_up: actions.GiveUpWorker | None = None
        """Why the core has the stream closed; None: the stream goes on."""

    def start(self, action: actions.StartLeg) -> None:
        """Raises DecodeError where it cannot be said: it must not come to light when it leaves
        together with others.
        """
        if action.overlay or action.made:
            action.command.task = action.overlay + translate.resumption(action.made)
        self._starts.append(action)
        self.outbox.notify()

    def release(self, action: actions.ReleaseLeg) -> None:
        self._releases.append(action.leg)
        self.outbox.notify()

    def cancel(self, action: actions.CancelLeg) -> None:
        self._cancels.append(worker_pb2.CancelLeg(leg=action.leg, reason=action.reason))
        self.outbox.notify()

    def forget(self, request: int) -> None:
        """Let the worker drop the task of a request that has ended."""
        self._over.append(request)
        if request in self._kept:
            self.outbox.notify()

    def pair(self) -> None:
        """Tell the worker that a pair uses it."""
        self._paired = True
        self.outbox.notify()

    @property
    def waits(self) -> bool:
        """Something is to be said that the worker has not read."""
        return bool(self._starts or self._releases or self._cancels)

    def unsent(self) -> frozenset[int]:
        """Legs whose starts have not left."""
        return frozenset(action.leg for action in self._starts)

    def _take(self) -> worker_pb2.WorkerCommand | None:
        self.patience.moved = True
        command = worker_pb2.WorkerCommand()
        self._take_starts(command)
        if self._starts:
            self.outbox.notify()
            return command
        releases, self._releases = self._releases, []
        cancels, self._cancels = self._cancels[:MOST_ITEMS], self._cancels[MOST_ITEMS:]
        if self._cancels:
            self.outbox.notify()
        forget, self._over = self._forget(self._over) if self._over else [], []
        paired, self._paired = self._paired, False
        if not (command.start or releases or cancels or forget or paired):
            return None
        command.release.extend(releases)
        command.cancel.extend(cancels)
        command.forget.extend(forget)
        command.paired = paired
        return command

    def _take_starts(self, command: worker_pb2.WorkerCommand) -> None:
        """As many of the first as make a message, with the tasks that they need."""
        starts, size = command.start, 0
        own: list[tuple[worker_pb2.StartLeg, actions.StartLeg]] = []
        while self._starts and size < MESSAGE_BYTES and len(starts) < MOST_ITEMS:
            action = self._starts.popleft()
            start = starts.add()
            start.CopyFrom(action.command)
            size += _ITEM_BYTES + len(start.task)
            if not (action.request and self._keeps(action)):
                own.append((start, action))
                size += len(action.task)
            else:
                start.kept_task = action.request
                if action.request not in self._kept:
                    self._kept[action.request] = len(action.task)
                    self._kept_bytes += len(action.task)
                    self._keep(command, action)
                    size += len(action.task)
        for start, action in own:  # the worker reads what is kept first
            start.known_prompt, task = self.chunks.shorten(action.task, action.chunk_names)
            start.task = task + start.task

    def _keep(self, command: worker_pb2.WorkerCommand, action: actions.StartLeg) -> None:
        known, task = self.chunks.shorten(action.task, action.chunk_names)
        command.keep.add(number=action.request, task=task, known_prompt=known)

    def _keeps(self, action: actions.StartLeg) -> bool:
        """Whether the worker has its task with this command, and its request's other legs'."""
        if not self.keeps_tasks:
            return False
        room = MAX_KEPT_BYTES - self._kept_bytes
        return action.request in self._kept or len(action.task) <= room

    def _forget(self, requests: Iterable[int]) -> list[int]:
        kept = [request for request in requests if request in self._kept]
        for request in kept:
            self._kept_bytes -= self._kept.pop(request)
        return kept
