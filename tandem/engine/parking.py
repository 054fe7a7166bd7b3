"""KV that a prefill engine keeps for requests to come, and how much of it."""

from __future__ import annotations

from tandem.engine.base import EngineRequest, ParkingLimits
from tandem.errors import ParkingFullError
from tandem.v1 import common_pb2


class Parking:
    """Places by request. One is taken before its KV is computed."""

    def __init__(self, limits: ParkingLimits) -> None:
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self._rooms: dict[int, int] = {}
        """Rooms of requests that have ended: their KV alone is left."""

    def reserve(self, request: EngineRequest, size: int) -> None:
        """Take a place for KV of so many bytes, until `free`. Raises ParkingFullError."""
        limits, taken = self._limits, sum(self._sizes.values())
        if len(self._sizes) >= limits.prompts or taken + size > limits.bytes:
            raise ParkingFullError(
                f"{len(self._sizes)} prompts take {taken} bytes of parked KV; at most "
                f"{limits.prompts} may take {limits.bytes}",
                phase=common_pb2.PHASE_PREFILL,
            )
        self._sizes[request.request_id] = size

    def park(self, request: EngineRequest) -> None:
        """The request has ended, and its KV waits."""
        if request.request_id in self._sizes:
            self._rooms[request.request_id] = request.room

    def room(self, request_id: int) -> int | None:
        """The room under which a request's KV is parked; None: it is not."""
        return self._rooms.get(request_id)

    def free(self, request_id: int) -> None:
        """Give a place up, if there is one."""
        self._sizes.pop(request_id, None)
        self._rooms.pop(request_id, None)

    @property
    def bytes(self) -> int:
        """How much KV is parked."""
        return sum(self._sizes[each] for each in self._rooms)

    def __len__(self) -> int:
        """How many prompts are parked."""
        return len(self._rooms)
