"""What the core is told. Each call of Core.handle says when, in seconds of a clock that never goes
back.

`link` is a number that the shell gives to a router's stream, never reused. `leg` is that router's
own number. `request_id` is this worker's number, by which engine, hooks and classifiers know a leg.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandem.engine.base import Delta, EngineRequest
from tandem.errors import TandemError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.deferred import Ruling
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.output import Output


class LinkUp(msgspec.Struct, frozen=True):
    """A router's stream is open. What waits for it is `Core.outgoing(link)`."""

    link: int


class LinkDown(msgspec.Struct, frozen=True):
    """A router's stream is gone: every leg that came by it ends."""

    link: int


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A router wants a leg whose task can run."""

    link: int
    command: worker_pb2.StartLeg
    task: common_pb2.Task
    request: EngineRequest
    output: Output
    parking: worker_pb2.LegParked | None = None
    """A context-only leg: what the router is to be told, but for the token."""
    obstacle: str = ""
    """Why no other worker could go on with it; empty: another could."""
    own_bytes: int
    """Bytes of the task that the leg alone keeps; 0 where legs share a kept task."""
    intake_seconds: float = 0.0
    """CPU time in which the task was read and made into a request."""


class Unreadable(msgspec.Struct, frozen=True):
    """A router wants a leg whose task cannot run, whatever the reason."""

    link: int
    command: worker_pb2.StartLeg
    error: TandemError


class NotBegun(msgspec.Struct, frozen=True):
    """The answer to a Begin that the engine refused: it holds nothing, and says nothing more."""

    request_id: int
    command: worker_pb2.StartLeg
    error: TandemError


class NotCancelled(msgspec.Struct, frozen=True):
    """The answer to a CancelEngine that failed: the engine is asked again with the next Tick."""

    request_id: int


class Unsendable(msgspec.Struct, frozen=True):
    """A row of a sequence could not be written for its router, and was left out."""

    link: int
    destination: int
    sequence: int


class Release(msgspec.Struct, frozen=True):
    """Prefill's verdict lets a decode leg's output go."""

    link: int
    leg: int


class Cancel(msgspec.Struct, frozen=True):
    """The router ends a leg, whatever it waits for."""

    link: int
    leg: int
    reason: str


class Stepped(msgspec.Struct, frozen=True):
    """What the engine brought since the last time, of each request in order."""

    deltas: Sequence[Delta]


class PlayOn(msgspec.Struct, frozen=True):
    """A leg's turn has come, to replay more of its output."""

    request_id: int


class Ruled(msgspec.Struct, frozen=True):
    """What hooks made of earlier steps. Those of one group that were given to them together come
    together."""

    rulings: Sequence[Ruling]


class Judged(msgspec.Struct, frozen=True):
    """What classifiers made of an output so far: the answer to AskClassifiers."""

    request_id: int
    judgement: Judgement
    scores: str = ""
    """External scores as JSON, where the client asked for them."""


class JudgeFailed(msgspec.Struct, frozen=True):
    """Hooks, classifiers or the audit log could not do their part for a leg: it fails closed."""

    request_id: int
    error: TandemError


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: legs may be past their deadline. About once a second."""


class Drain(msgspec.Struct, frozen=True):
    """Refuse what is new from now on."""


class Abandon(msgspec.Struct, frozen=True):
    """End everything that is still open."""

    error: TandemError


class EngineGone(msgspec.Struct, frozen=True):
    """The engine died: it holds nothing any more, and says nothing of each request."""

    error: TandemError


Event = (
    LinkUp
    | LinkDown
    | Start
    | Unreadable
    | NotBegun
    | NotCancelled
    | Unsendable
    | Release
    | Cancel
    | Stepped
    | PlayOn
    | Ruled
    | Judged
    | JudgeFailed
    | Tick
    | Drain
    | Abandon
    | EngineGone
)
