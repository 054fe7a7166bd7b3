"""What the core asks for. Actions are carried out in the order in which they are given.

Whatever goes wrong while one is carried out is told to the core as the event that the action names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandem.engine.base import EngineRequest, KvTransfer
from tandem.errors import TandemError
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.deferred import SequenceInfo, Work
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.leg import Leg


class Begin(msgspec.Struct, frozen=True):
    """Give the request to the engine, then announce the sequence to hooks and classifiers.

    Answer with NotBegun where the engine does not take it, and with JudgeFailed where the others
    cannot; else with nothing.
    """

    request: EngineRequest
    task: common_pb2.Task
    command: worker_pb2.StartLeg
    info: SequenceInfo
    to_compute: int
    """As the leg's."""
    judged: bool = True
    """Hooks and classifiers are to know of it."""


class CancelEngine(msgspec.Struct, frozen=True):
    """The engine is to let go of a request, or of KV that it parked for nobody. It is asked once,
    and again after NotCancelled, which is the answer where it cannot be asked.
    """

    request_id: int


class JudgeByHooks(msgspec.Struct, frozen=True):
    """What one step brought, of all sequences. Answer with Ruled, at once or later; with
    JudgeFailed for each where the hooks cannot be asked.
    """

    works: Sequence[Work]


class WaitTurn(msgspec.Struct, frozen=True):
    """More of a leg waits to be replayed: answer with the event PlayOn once others had a turn."""

    request_id: int


class AskClassifiers(msgspec.Struct, frozen=True):
    """Begin a judgement. Answer with Judged or JudgeFailed. At most one is open for a leg."""

    request_id: int
    question: Question
    finish_reason: str


class StopJudging(msgspec.Struct, frozen=True):
    """The output is over: tell its hooks, unless they know, and cancel its classifiers. Nothing
    that they say later counts.
    """

    request_id: int


class Send(msgspec.Struct, frozen=True):
    """Something waits for a router: take it as soon as the stream can be written."""

    link: int


class GiveUp(msgspec.Struct, frozen=True):
    """End a router's stream, which is at fault. LinkDown is expected."""

    link: int
    reason: str


class CountTransfer(msgspec.Struct, frozen=True):
    """A hand-over of KV cache was measured."""

    kv: KvTransfer
    trace_id: str
    """Empty: the leg is not traced."""


class LegClosed(msgspec.Struct, frozen=True):
    """A leg is over, for counters, spans and the log. It does not change any more."""

    leg: Leg
    at: float


class LegRefused(msgspec.Struct, frozen=True):
    """A leg never began, for counters, spans and the log."""

    link: int
    command: worker_pb2.StartLeg
    error: TandemError
    at: float


Action = (
    Begin
    | CancelEngine
    | JudgeByHooks
    | WaitTurn
    | AskClassifiers
    | StopJudging
    | Send
    | GiveUp
    | CountTransfer
    | LegClosed
    | LegRefused
)
