"""What the core asks for. Actions are carried out in the order in which they are given."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec

from tandem.errors import TandemError
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router.core.lost_hits import LostHits
from tandem_router.core.story import Moment, Story


class Action(msgspec.Struct, frozen=True):
    """Carried out by the relay."""


class StartLeg(Action, frozen=True, kw_only=True):
    worker: str
    command: worker_pb2.StartLeg
    """All that the worker is told, but for its task."""
    task: bytes
    """As its frontend sent it: the same object for all legs of a request."""
    chunk_names: tuple[bytes, ...] = ()
    """The names of the prompt's chunks; empty: the names are not known."""
    overlay: bytes = b""
    """Laid over the task: fields that replace its own."""
    made: bytes = b""
    """What the sequence goes on from, as LegMade said it; empty: it begins."""
    request: int = 0
    """The number of its request, where other legs run the same task; 0: none does."""

    @property
    def leg(self) -> int:
        return self.command.leg


class ReleaseLeg(Action, frozen=True):
    """A held decode leg may send its output."""

    worker: str
    leg: int


class CancelLeg(Action, frozen=True):
    worker: str
    leg: int
    reason: str
    """An error's code, or how the sequence ended."""


class EndSequence(Action, frozen=True):
    """Tell the frontend that a sequence ended otherwise than by the Finish in its payload."""

    frontend: int
    sequence: int
    error: TandemError | None
    """None: a hook ended it, with stop_reason."""
    stop_reason: str = ""
    refused: bool = False
    """Nothing of its request has run, nor will: it was not admitted, or no pair has come for it."""
    completion_tokens: int = 0
    """Generated, where prefill's hook judged this very sequence and ended its request."""
    prompt_tokens: int = 0
    """Tokens of the request's prompt; 0: neither who asked nor a worker has said."""


class GiveVoucher(Action, frozen=True):
    """Tell the frontend that a context-only sequence ended in good order, and what it left."""

    frontend: int
    sequence: int
    voucher: common_pb2.Voucher
    expires_at: float
    """By the core's clock."""


class QueueWait(Action, frozen=True):
    """Tell the frontend, which wants a report, how long a sequence was in the queue."""

    frontend: int
    sequence: int
    seconds: float
    cause: str
    """Why it did not start at once, for people; empty: it did."""


class TellWait(Action, frozen=True):
    """Tell the frontend, which wants a report, what a sequence waits for."""

    frontend: int
    sequence: int
    what: str
    """For people."""


class RequestEnded(Action, frozen=True):
    """All sequences of a request have ended, or it was refused: for whoever asks for its story, for
    logs, and for workers that keep its task.
    """

    story: Story
    refused: bool = False
    request: int = 0
    workers: tuple[str, ...] = ()
    """Workers on which legs of a request of several sequences were started."""


class SequenceTraced(Action, frozen=True, kw_only=True):
    """A traced sequence has ended; for its span."""

    submit: router_pb2.Submit
    span: int
    output_index: int
    arrived: float
    ended: float
    outcome: str
    error: TandemError | None
    moments: tuple[Moment, ...]


class Suspect(NamedTuple):
    """A request that a worker may have died of."""

    submit: router_pb2.Submit
    task: bytes
    let_go_bytes: int
    """What the prompt took that the task no longer has."""


class WorkerDied(Action, frozen=True):
    """A worker may have died of one of the requests that had begun there; for logs."""

    worker: str
    reason: str
    suspects: tuple[Suspect, ...]


class Logged(Action, frozen=True):
    """What is logged and changes nothing else: a line, with the action's fields beside it, as
    `rename` names them in the log.
    """

    line: ClassVar[str]
    is_error: ClassVar[bool] = False


class WorkerStalled(Action, frozen=True):
    """A worker's engine makes no step, or makes one again; for logs."""

    worker: str
    stalled: bool
    step_age: float


class GiveUpWorker(Action, frozen=True):
    """Close the worker's stream at once: its engine makes no step, and others may do its work, or
    its output cannot be read.
    """

    worker: str
    reason: str
    died: bool = False
    """The WorkerDown to come says that the worker may have died: what had begun there may be to
    blame.
    """


class CanaryFailed(Logged, frozen=True):
    """A canary of two workers did not end well."""

    line = "a canary failed: no KV has moved between two workers"

    prefill: str
    decode: str
    reason: str


class CanaryHangs(Logged, frozen=True):
    """A canary of two workers has not ended, and neither of them may have clients' requests for as
    long; said again and again.
    """

    line = "a canary hangs: no KV has moved between two workers yet"

    prefill: str
    decode: str
    seconds: float
    """Since it began."""


class WorkerEjected(Logged, frozen=True, rename={"worker": "address"}):
    """A worker gets nothing new for a time."""

    line = "worker ejected"
    is_error = True

    worker: str
    seconds: float
    reason: str


class WorkerReturned(Logged, frozen=True, rename={"worker": "address"}):
    """A worker that was ejected gets as much as any other again."""

    line = "worker no longer ejected"

    worker: str
    reason: str


class HitsLost(Action, frozen=True):
    """A session's prompts have begun to differ at the same early place each time; for logs."""

    lost: LostHits


class RefuseFrontend(Action, frozen=True):
    """The frontend broke the protocol: close its stream. The core has dropped it already."""

    frontend: int
    reason: str


class FleetChanged(Action, frozen=True):
    models: tuple[router_pb2.ServedModel, ...]


class WorkerPaired(Action, frozen=True):
    """A pair uses the worker; said once for each WorkerUp."""

    worker: str


class PairRejected(Logged, frozen=True, rename={"pairs": "count"}):
    """A worker that came up does not match others of its model, or fits in no pair at all; said
    once for each reason at each WorkerUp.
    """

    line = "pair refused"

    worker: str
    reason: str
    """For people, with the first of those that it does not match."""
    pairs: int
    """How many pairs are refused for it."""


class SettleOverdue(Logged, frozen=True):
    """A worker has not closed a cancelled leg in time."""

    line = "a cancelled leg is overdue; its slot stays taken"

    worker: str
    leg: int
    trace_id: str
