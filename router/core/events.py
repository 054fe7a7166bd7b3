"""What the core is told. Each call of Core.handle says when, in seconds of a clock that never goes
back.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.core.values import Outcome, Phase, Profile
from tandem.errors import TandemError


@dataclass(slots=True, frozen=True)
class FrontendUp:
    frontend: int
    """Numbers are never reused while something of the earlier frontend is open."""


@dataclass(slots=True, frozen=True)
class FrontendDown:
    frontend: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Submit:
    """A request of n sequences, numbered first_sequence .. first_sequence + n - 1."""

    frontend: int
    first_sequence: int
    n: int
    model: str
    timeout_seconds: float
    task: bytes
    prompt_tokens: int = 0
    """0: not known."""
    max_tokens: int = 0
    priority: int = 0
    want_report: bool = False
    trace_id: str = ""


@dataclass(slots=True, frozen=True)
class Cancel:
    frontend: int
    first_sequence: int


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerUp:
    """A worker's stream is open. `worker` is its address."""

    worker: str
    listed_as: Phase
    profile: Profile


@dataclass(slots=True, frozen=True)
class WorkerDown:
    """A worker's stream is broken: every leg on it is closed by that."""

    worker: str
    reason: str


@dataclass(slots=True, frozen=True)
class WorkerDraining:
    worker: str
    draining: bool


@dataclass(slots=True, frozen=True)
class LegStarted:
    worker: str
    leg: int


@dataclass(slots=True, frozen=True)
class LegVerdict:
    worker: str
    leg: int
    terminate: bool
    reason: str = ""


@dataclass(slots=True, frozen=True)
class LegClosed:
    worker: str
    leg: int
    outcome: Outcome
    reason: str = ""
    error: TandemError | None = None
    retryable: bool = False


@dataclass(slots=True, frozen=True)
class Tick:
    """Time has passed."""


@dataclass(slots=True, frozen=True)
class Drain:
    """Refuse what is new from now on."""


@dataclass(slots=True, frozen=True)
class Abandon:
    """End everything that is still open."""


Event = (
    FrontendUp
    | FrontendDown
    | Submit
    | Cancel
    | WorkerUp
    | WorkerDown
    | WorkerDraining
    | LegStarted
    | LegVerdict
    | LegClosed
    | Tick
    | Drain
    | Abandon
)
