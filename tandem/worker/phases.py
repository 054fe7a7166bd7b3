"""What a delta does to a leg, in each phase. Everything else about legs is the same in both."""

from __future__ import annotations

from typing import Protocol

from tandem.engine.base import Delta
from tandem.v1 import worker_pb2
from tandem.worker.leg import Closing, Leg
from tandem.worker.output import End


class PhaseRules(Protocol):
    """One phase."""

    def arrived(self, leg: Leg, delta: Delta) -> None:
        """The leg's first delta that brought output, which hooks have not seen yet."""
        ...

    def ended(self, leg: Leg, end: End) -> None:
        """The last of the output was ruled on. Sets `leg.closing`."""
        ...

    shows: bool
    """Whether the client is sent what this phase's hooks let through."""


class PrefillRules:
    """The one chunk is judged and never shown: decode repeats its token. The router is told the
    verdict.
    """

    shows = False

    def arrived(self, leg: Leg, delta: Delta) -> None:
        pass

    def ended(self, leg: Leg, end: End) -> None:
        verdict = worker_pb2.LegVerdict()
        if end.terminated:
            verdict.terminate, verdict.reason = True, end.stop_reason
        leg.link.events.append(worker_pb2.LegEvent(leg=leg.number, verdict=verdict))
        leg.closing = Closing("finished")


class DecodeRules:
    """Every chunk is judged and shown. The first one says that the KV arrived."""

    shows = True

    def arrived(self, leg: Leg, delta: Delta) -> None:
        leg.started = True
        started = worker_pb2.LegStarted()
        if delta.kv is not None:
            started.kv_bytes, started.kv_seconds = delta.kv.bytes, delta.kv.seconds
        leg.link.events.append(worker_pb2.LegEvent(leg=leg.number, started=started))

    def ended(self, leg: Leg, end: End) -> None:
        leg.closing = (
            Closing("terminated", reason=end.stop_reason) if end.terminated else Closing("finished")
        )
