"""One router's stream, as the worker writes it: what waits for the router becomes frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandem.v1 import worker_pb2
from tandem.wire import frames
from tandem.wire.frames import Draft
from tandem.wire.outbox import Outbox
from tandem.wire.prompt_chunks import ReadChunks
from tandem.worker.core.outgoing import Outgoing


class RouterLink:
    """What comes to wait between two `take`s leaves as one frame, and as several where much comes
    at once.
    """

    def __init__(
        self,
        *,
        number: int,
        peer: str,
        outgoing: Outgoing,
        load: Callable[[], worker_pb2.Load],
        chunks: ReadChunks,
        unsendable: Callable[[int, int], object] = lambda destination, sequence: None,
    ) -> None:
        """`number`: the core's for this stream. `load` is asked for each frame that is to report
        the load. `chunks`: of the prompts that come by the stream. `unsendable` is told of a
        sequence, and its destination, whose output cannot be written.
        """
        self.number = number
        self.peer = peer
        self.outbox: Outbox[bytes] = Outbox(self.take)
        self.broken = asyncio.Event()
        self.fault = ""
        """What the router did wrong, once it is broken."""
        self.chunks = chunks
        self._outgoing = outgoing
        self._load = load
        self._unsendable = unsendable
        self._load_due = True
        self._prompt_chunks = chunks.most
        """To be said with the first frame."""

    def give_up(self, fault: str) -> None:
        """End the stream, saying why."""
        self.fault = fault
        self.broken.set()

    def report_load(self) -> None:
        """Tell the router what this worker carries, with the next frame."""
        self._load_due = True
        self.outbox.notify()

    def take(self) -> bytes | None:
        """The next frame, a WorkerFrame as it is sent; None: nothing waits. The outbox asks when it
        can write.
        """
        drafts, events = self._outgoing.take()
        frame = b"".join(
            [frames.write_envelope(to, self._written(to, draft)) for to, draft in drafts.items()]
        )
        while self._outgoing.unsendable:
            self._unsendable(*self._outgoing.unsendable.pop())
        if self._outgoing.waits:
            self.outbox.notify()
        if events:
            frame += worker_pb2.WorkerFrame(events=events).SerializeToString()
        if self._load_due:
            report = worker_pb2.WorkerFrame(load=self._load(), prompt_chunks=self._prompt_chunks)
            frame += report.SerializeToString()
            self._load_due, self._prompt_chunks = False, 0
        return frame or None

    def _written(self, destination: int, draft: Draft) -> bytes:
        """A frontend's payload. What of it cannot be written costs its own sequence."""
        try:
            return draft.serialize()
        except ValueError:
            for sequence in draft.blank():
                self._outgoing.unsendable.append((destination, sequence))
            return draft.serialize()
