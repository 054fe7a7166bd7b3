"""What a delta does to a leg, in each phase. Everything else about legs is the same in both."""

from __future__ import annotations

from typing import Protocol

from tandem.engine.base import Delta
from tandem.v1 import worker_pb2
from tandem.worker.leg import Closing, Leg
from tandem.worker.output import Piece


class PhaseRules(Protocol):
    """One phase. `advance` runs a delta that brought output through the leg's pipeline."""

    def advance(self, leg: Leg, delta: Delta) -> Piece | None:
        """What the client may be shown. Sets `leg.closing` where the leg ends with it.

        Raises HookError.
        """
        ...


class PrefillRules:
    """The one chunk is judged and never shown: decode repeats its token. The router is told the
    verdict.
    """

    def advance(self, leg: Leg, delta: Delta) -> Piece | None:
        leg.output.push(delta)
        end = leg.output.end
        if end is None:
            return None
        verdict = worker_pb2.LegVerdict()
        if end.terminated:
            verdict.terminate, verdict.reason = True, end.stop_reason
        leg.link.events.append(worker_pb2.LegEvent(leg=leg.number, verdict=verdict))
        leg.closing = Closing("finished")
        return None


class DecodeRules:
    """Every chunk is judged and shown. The first one says that the KV arrived."""

    def advance(self, leg: Leg, delta: Delta) -> Piece | None:
        if not leg.started:
            self._start(leg, delta)
        piece = leg.output.push(delta)
        end = leg.output.end
        if end is not None:
            leg.closing = (
                Closing("terminated", reason=end.stop_reason)
                if end.terminated
                else Closing("finished")
            )
        return piece

    def _start(self, leg: Leg, delta: Delta) -> None:
        leg.started = True
        started = worker_pb2.LegStarted()
        if delta.kv is not None:
            started.kv_bytes, started.kv_seconds = delta.kv.bytes, delta.kv.seconds
        leg.link.events.append(worker_pb2.LegEvent(leg=leg.number, started=started))
