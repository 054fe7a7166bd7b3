"""Which worker each open sequence runs on, as routers say: whose output it may be, and what ends
where that worker's output is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream

_NONE: Mapping[int, RequestState] = MappingProxyType({})


class Runs:
    """A router numbers its workers for itself, so a worker is known by stream and number."""

    def __init__(self) -> None:
        self._of: dict[tuple[RouterStream, int], dict[int, RequestState]] = {}
        self._at: dict[int, tuple[RouterStream, int]] = {}

    def begin(self, stream: RouterStream, worker: int, sequence: int, state: RequestState) -> None:
        """The sequence runs on that worker from now on, and nowhere else."""
        self.end(sequence)
        self._at[sequence] = stream, worker
        self._of.setdefault((stream, worker), {})[sequence] = state

    def knows(self, sequence: int) -> bool:
        """Whether a router has said on which worker the sequence runs."""
        return sequence in self._at

    def end(self, sequence: int) -> None:
        """Nothing more is expected of the sequence, which need not be known."""
        place = self._at.pop(sequence, None)
        if place is not None:
            here = self._of[place]
            del here[sequence]
            if not here:
                del self._of[place]

    def of(self, stream: RouterStream, worker: int) -> Mapping[int, RequestState]:
        """The requests of the sequences that run on a worker, by sequence."""
        return self._of.get((stream, worker), _NONE)
