"""What waits to be sent to one router, and the frame that it becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.v1 import worker_pb2
from tandem.wire.columns import Draft
from tandem.wire.outbox import Outbox

if TYPE_CHECKING:
    from tandem.worker.leg import Leg

MAX_BACKLOG_BYTES = 16 * 1024 * 1024
"""What may wait for a router that does not read; a frame must also stay below gRPC's limit."""
ROW_BYTES = 32
"""What a row costs beside its text, ids and log-probabilities; an estimate."""


class RouterLink:
    """One router's stream: output by frontend, events, and the legs that came by it.

    Everything added between two `take`s leaves as one frame.
    """

    def __init__(self, *, peer: str, load: Callable[[], worker_pb2.Load]) -> None:
        """`load` is asked for each frame that is to report it."""
        self.peer = peer
        self.legs: dict[int, Leg] = {}
        self.outbox: Outbox[worker_pb2.WorkerFrame] = Outbox(self.take)
        self.broken = asyncio.Event()
        self.events: list[worker_pb2.LegEvent] = []
        self.backlog = 0
        """Bytes that wait, roughly."""
        self._load = load
        self._load_due = True
        self._drafts: dict[int, Draft] = {}

    def draft(self, destination: int) -> Draft:
        """Where rows for a frontend are written; they leave with the next `notify`."""
        draft = self._drafts.get(destination)
        if draft is None:
            draft = self._drafts[destination] = Draft()
        return draft

    def notify(self) -> None:
        """What was added may leave. A router that lets too much wait is given up."""
        if self.backlog > MAX_BACKLOG_BYTES:
            self.broken.set()
        else:
            self.outbox.notify()

    def report_load(self) -> None:
        """Tell the router what this worker carries, with the next frame."""
        self._load_due = True
        self.outbox.notify()

    def take(self) -> worker_pb2.WorkerFrame | None:
        """All that waits, as one frame; None: nothing does. The outbox asks when it can write."""
        drafts, self._drafts = self._drafts, {}
        events, self.events = self.events, []
        self.backlog = 0
        if not (drafts or events or self._load_due):
            return None
        frame = worker_pb2.WorkerFrame(
            envelopes=[
                worker_pb2.Envelope(destination=destination, payload=draft.serialize())
                for destination, draft in drafts.items()
            ],
            events=events,
            load=self._load() if self._load_due else None,
        )
        self._load_due = False
        return frame
