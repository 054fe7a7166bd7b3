"""What the core asks for. Actions are carried out in the order in which they are given."""

from __future__ import annotations

from dataclasses import dataclass

from router.core.values import ServedModel
from tandem.errors import TandemError


@dataclass(slots=True, frozen=True, kw_only=True)
class StartLeg:
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


@dataclass(slots=True, frozen=True)
class ReleaseLeg:
    """A held decode leg may send its output."""

    worker: str
    leg: int


@dataclass(slots=True, frozen=True)
class CancelLeg:
    worker: str
    leg: int
    reason: str
    """An error's code, or how the sequence ended."""


@dataclass(slots=True, frozen=True)
class EndSequence:
    """Tell the frontend that a sequence ended otherwise than by the Finish in its payload."""

    frontend: int
    sequence: int
    error: TandemError | None
    """None: a hook ended it, with stop_reason."""
    stop_reason: str = ""


@dataclass(slots=True, frozen=True)
class RequestEnded:
    """All sequences of a request have ended; for logs."""

    trace_id: str
    outcome: str
    seconds: float


@dataclass(slots=True, frozen=True)
class RefuseFrontend:
    """The frontend broke the protocol: close its stream. The core has dropped it already."""

    frontend: int
    reason: str


@dataclass(slots=True, frozen=True)
class FleetChanged:
    models: tuple[ServedModel, ...]


@dataclass(slots=True, frozen=True)
class PairRejected:
    """Two workers of one model do not match, or a worker cannot be in any pair; for logs."""

    worker: str
    reason: str


@dataclass(slots=True, frozen=True)
class SettleOverdue:
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
