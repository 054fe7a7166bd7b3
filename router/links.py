"""What waits to be sent to one peer: bounded drafts that feed one outgoing stream each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from router import translate
from router.core import actions
from tandem.errors import SlowClientError, TandemError
from tandem.v1 import router_pb2, worker_pb2
from tandem.wire.outbox import Outbox

MESSAGE_BYTES = 4 * 1024 * 1024
"""A message takes no more than this and one item; what is left follows in the next."""
_ITEM_BYTES = 128
"""Counted for an item beside its payload."""


def _first_items(sizes: Iterable[int]) -> tuple[int, int]:
    """How many of the first items make a message, and their size."""
    count = total = 0
    for size in sizes:
        if total >= MESSAGE_BYTES:
            break
        count, total = count + 1, total + size
    return count, total


class Sink(Protocol):
    """Where output for one frontend number goes."""

    def add_payload(self, payload: bytes) -> None:
        """Take output: a serialised TokenColumns."""

    def add_end(self, action: actions.EndSequence) -> None: ...

    def set_fleet(self, fleet: router_pb2.Fleet) -> None: ...

    def set_draining(self) -> None:
        """Nothing new is admitted any longer; what is open goes on."""

    def fail(self, error: TandemError) -> None:
        """Give the frontend up: nothing more is sent."""

    def close(self) -> None:
        """Send what is there, then end."""


class FrontendLink:
    """The way to a connected frontend. Payloads are joined as bytes and never parsed."""

    def __init__(self, max_backlog_bytes: int) -> None:
        self.outbox: Outbox[router_pb2.RouterMessage] = Outbox(self._take)
        self.over = asyncio.Event()
        """The stream is to be closed, with `failure` where there is one."""
        self.failure: TandemError | None = None
        self._max_backlog = max_backlog_bytes
        self._backlog = 0
        self._payloads: list[bytes] = []
        self._ends: list[router_pb2.SequenceEnd] = []
        self._fleet: router_pb2.Fleet | None = None
        self._draining = False

    def add_payload(self, payload: bytes) -> None:
        self._payloads.append(payload)
        self._grow(len(payload))

    def add_end(self, action: actions.EndSequence) -> None:
        self._ends.append(translate.sequence_end(action))
        self._grow(_ITEM_BYTES)

    def set_fleet(self, fleet: router_pb2.Fleet) -> None:
        self._fleet = fleet
        self.outbox.notify()

    def set_draining(self) -> None:
        self._draining = True
        self.outbox.notify()

    def fail(self, error: TandemError) -> None:
        self.failure = error
        self._payloads, self._ends = [], []
        self.over.set()

    def close(self) -> None:
        self.outbox.close()

    def _grow(self, size: int) -> None:
        self._backlog += size
        if self._backlog > self._max_backlog and self.failure is None:
            self.fail(SlowClientError("the frontend does not read its stream"))
        self.outbox.notify()

    def _take(self) -> router_pb2.RouterMessage | None:
        if self._backlog > MESSAGE_BYTES and (message := self._take_some()) is not None:
            return message
        payload = b"".join(self._payloads)
        ends, fleet, draining = self._ends, self._fleet, self._draining
        self._payloads, self._ends, self._backlog = [], [], 0
        self._fleet, self._draining = None, False
        if not (payload or ends or draining or fleet is not None):
            return None
        return router_pb2.RouterMessage(payload=payload, ends=ends, fleet=fleet, draining=draining)

    def _take_some(self) -> router_pb2.RouterMessage | None:
        """The first payloads of a large backlog. Ends follow later: they apply after payloads."""
        count, size = _first_items(map(len, self._payloads))
        if count == len(self._payloads):
            return None
        payload = b"".join(self._payloads[:count])
        del self._payloads[:count]
        self._backlog -= size
        self.outbox.notify()
        return router_pb2.RouterMessage(payload=payload)


class WorkerLink:
    """The way to a connected worker. Starts leave before releases and cancels, so that a worker
    knows each leg that it is told of.
    """

    def __init__(self, max_backlog_bytes: int) -> None:
        self.outbox: Outbox[worker_pb2.WorkerCommand] = Outbox(self._take)
        self.overflow = asyncio.Event()
        """The worker does not read; its stream is to be closed."""
        self._max_backlog = max_backlog_bytes
        self._backlog = 0
        self._starts: list[worker_pb2.StartLeg] = []
        self._releases: list[int] = []
        self._cancels: list[worker_pb2.CancelLeg] = []
        self._paired = False

    def start(self, action: actions.StartLeg) -> None:
        self._starts.append(translate.start_leg(action))
        self._grow(len(action.task) + _ITEM_BYTES)

    def release(self, action: actions.ReleaseLeg) -> None:
        self._releases.append(action.leg)
        self._grow(_ITEM_BYTES)

    def cancel(self, action: actions.CancelLeg) -> None:
        self._cancels.append(worker_pb2.CancelLeg(leg=action.leg, reason=action.reason))
        self._grow(_ITEM_BYTES)

    def pair(self) -> None:
        """Tell the worker that a pair uses it."""
        self._paired = True
        self.outbox.notify()

    def _grow(self, size: int) -> None:
        self._backlog += size
        if self._backlog > self._max_backlog:
            self.overflow.set()
        self.outbox.notify()

    def _take(self) -> worker_pb2.WorkerCommand | None:
        if self._backlog > MESSAGE_BYTES and (message := self._take_some()) is not None:
            return message
        starts, releases, cancels = self._starts, self._releases, self._cancels
        self._starts, self._releases, self._cancels, self._backlog = [], [], [], 0
        paired, self._paired = self._paired, False
        if not (starts or releases or cancels or paired):
            return None
        return worker_pb2.WorkerCommand(
            start=starts, release=releases, cancel=cancels, paired=paired
        )

    def _take_some(self) -> worker_pb2.WorkerCommand | None:
        count, size = _first_items(len(each.task) + _ITEM_BYTES for each in self._starts)
        if count == len(self._starts):
            return None
        starts = self._starts[:count]
        del self._starts[:count]
        self._backlog -= size
        self.outbox.notify()
        return worker_pb2.WorkerCommand(start=starts)
