"""What the core asks for. Actions are carried out in the order in which they are given."""

from __future__ import annotations

import msgspec

from router.core.values import ServedModel
from tandem.errors import TandemError


class StartLeg(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    leg: int
    frontend: int
    sequence: int
    output_index: int
    room: int
    kv_peer: str
    """For a decode leg: where its prefill worker hands over."""
    timeout_ms: int
    task: bytes
    hold_output: bool


class ReleaseLeg(msgspec.Struct, frozen=True):
    """A held decode leg may send its output."""

    worker: str
    leg: int


class CancelLeg(msgspec.Struct, frozen=True):
    worker: str
    leg: int
    reason: str
    """An error's code, or how the sequence ended."""


class EndSequence(msgspec.Struct, frozen=True):
    """Tell the frontend that a sequence ended otherwise than by the Finish in its payload."""

    frontend: int
    sequence: int
    error: TandemError | None
    """None: a hook ended it, with stop_reason."""
    stop_reason: str = ""


class RequestEnded(msgspec.Struct, frozen=True):
    """All sequences of a request have ended; for logs."""

    trace_id: str
    outcome: str
    seconds: float


class RefuseFrontend(msgspec.Struct, frozen=True):
    """The frontend broke the protocol: close its stream. The core has dropped it already."""

    frontend: int
    reason: str


class FleetChanged(msgspec.Struct, frozen=True):
    models: tuple[ServedModel, ...]


class PairRejected(msgspec.Struct, frozen=True):
    """Two workers of one model do not match, or a worker cannot be in any pair; for logs."""

    worker: str
    reason: str


class SettleOverdue(msgspec.Struct, frozen=True):
    """A worker has not closed a cancelled leg in time; for logs."""

    worker: str
    leg: int


Action = (
    StartLeg
    | ReleaseLeg
    | CancelLeg
    | EndSequence
    | RequestEnded
    | RefuseFrontend
    | FleetChanged
    | PairRejected
    | SettleOverdue
)
