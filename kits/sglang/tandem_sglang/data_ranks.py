"""Which data-parallel rank a request is with: one count of the open ones for all ranks."""

from __future__ import annotations

from tandem.engine.base import EngineRequest, Role


class DataRanks:
    """A rank keeps a request's KV, so it has all of the request."""

    def __init__(self, count: int, role: Role) -> None:
        self._role = role
        self._open = [0] * count
        self._of: dict[int, int] = {}

    def take(self, request: EngineRequest) -> int | None:
        """The rank that `request` goes to: in prefill its room says so, because decode goes by the
        room too, and elsewhere the one with the fewest. None: there is one alone.
        """
        if len(self._open) == 1:
            return None
        if self._role is Role.PREFILL:
            rank = request.room % len(self._open)
        else:
            rank = self._open.index(min(self._open))
        self._open[rank] += 1
        self._of[request.request_id] = rank
        return rank

    def leave(self, request_id: int) -> None:
        """The request of that number has ended."""
        if (rank := self._of.pop(request_id, None)) is not None:
            self._open[rank] -= 1
