"""What waits to be sent to one router: rows by the frontend they are for, and events of legs.

Rows are written into plain columns, so a token costs no object of its own.
"""

from __future__ import annotations

from tandem.v1 import worker_pb2
from tandem.wire.columns import Draft

MAX_BACKLOG_BYTES = 16 * 1024 * 1024
"""What may wait for a router that does not read; a frame must also stay below gRPC's limit."""
ROW_BYTES = 32
"""What a row costs beside its text, ids and log-probabilities; an estimate."""


class Outgoing:
    """Everything added between two `take`s leaves as one frame."""

    __slots__ = ("backlog", "drafts", "events")

    def __init__(self) -> None:
        self.drafts: dict[int, Draft] = {}
        """Rows by the number of the frontend."""
        self.events: list[worker_pb2.LegEvent] = []
        self.backlog = 0
        """Bytes that wait, roughly."""

    def draft(self, destination: int) -> Draft:
        """Where rows for a frontend are written."""
        draft = self.drafts.get(destination)
        if draft is None:
            draft = self.drafts[destination] = Draft()
        return draft

    def take(self) -> tuple[dict[int, Draft], list[worker_pb2.LegEvent]]:
        """All that waits. What is added from now on is for the next call."""
        taken = self.drafts, self.events
        self.drafts, self.events, self.backlog = {}, [], 0
        return taken
