"""KV that a prefill engine keeps for requests to come, and what may be kept."""

from __future__ import annotations

from tandem.engine.base import ParkingLimits
from tandem.errors import ParkingFullError
from tandem.v1 import common_pb2
from tandem_sim.sequence import Sequence


class Parking:
    """Sequences whose KV is parked, and those that will park theirs."""

    def __init__(self, limits: ParkingLimits, *, page_bytes: int) -> None:
        self._limits = limits
        self._page_bytes = page_bytes
        self._places: dict[int, Sequence] = {}
        self._parked: set[int] = set()
        self._reserved = 0

    def reserve(self, sequence: Sequence) -> None:
        """A place for it, until `free`. Raises ParkingFullError."""
        limits, size = self._limits, self._size(sequence)
        if len(self._places) >= limits.prompts or self._reserved + size > limits.bytes:
            raise ParkingFullError(
                f"{len(self._places)} prompts take {self._reserved} bytes of parked KV; at most "
                f"{limits.prompts} may take {limits.bytes}",
                phase=common_pb2.PHASE_PREFILL,
            )
        self._places[sequence.id] = sequence
        self._reserved += size

    def park(self, sequence: Sequence) -> None:
        """Note that the KV of a sequence is complete and waits."""
        self._parked.add(sequence.id)

    def free(self, sequence: Sequence) -> None:
        """Give up the place of a sequence, where it has one."""
        if self._places.pop(sequence.id, None) is not None:
            self._reserved -= self._size(sequence)
            self._parked.discard(sequence.id)

    def room(self, request_id: int) -> int | None:
        """The room under which a request's KV is parked; None: it is not."""
        return self._places[request_id].request.room if request_id in self._parked else None

    @property
    def bytes(self) -> int:
        """How much of the KV pool is parked."""
        return sum(self._size(self._places[each]) for each in self._parked)

    def __len__(self) -> int:
        """How many sequences have their KV parked."""
        return len(self._parked)

    def _size(self, sequence: Sequence) -> int:
        return sequence.prompt_pages * self._page_bytes
