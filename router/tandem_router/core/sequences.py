"""A request, its sequences and their legs.

    queued -> prefilling -> decoding -> ended
                   |                      ^
                   +-> retrying -> queued |       (and to ended from everywhere)

A context-only sequence is prefilling until it ends, with its prefill leg alone. One that has a
voucher runs a decode leg alone. A leg is open until its worker has closed it or is lost; an ended
sequence lives on only as long as one of its legs does.
"""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field

import msgspec

from tandem.byte_budget import Allotment
from tandem.errors import TandemError
from tandem.prefix_blocks import Blocks
from tandem.timeline import NOTHING, LegTimes
from tandem.v1 import common_pb2, router_pb2
from tandem_router.core.actions import GiveVoucher, SequenceTraced
from tandem_router.core.events import Submit
from tandem_router.core.pace import Pace
from tandem_router.core.picking import Pair
from tandem_router.core.resuming import Made
from tandem_router.core.story import (
    Ahead,
    ChosenWorker,
    Holders,
    Moment,
    MomentName,
    Rejected,
    WayTaken,
)
from tandem_router.core.values import Edition, Needs, Phase
from tandem_router.core.worker import Worker
from tandem_router.policies import Prompt

MOST_TOLD = 16
"""Sequences of a request whose moments are noted; a traced sequence's moments always are."""
MOST_MOMENTS = 64
"""Noted of a sequence, however often it is run again."""
QUEUED = Moment(0.0, "queued")


class RoutedStage(enum.Enum):
    QUEUED = "queued"
    PREFILLING = "prefilling"
    """The legs are started; the KV has not reached decode."""
    DECODING = "decoding"
    """Decode has said LegStarted: output may have been shown, so nothing is retried. See
    resuming.py for what is resumed."""
    RETRYING = "retrying"
    """An attempt failed, or is to be made again; waits until both its legs are closed."""
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Request:
    asked: InitVar[Submit]
    edition: Edition
    arrived: float
    deadline: float
    open: int
    """Sequences that have not ended."""
    allotment: Allotment
    """The task's share of the budget, until the task is let go or its last leg is closed."""
    legs: int = 0
    """Open legs of the request."""
    number: int = 0
    """The router's own number of a request with more than one sequence; else 0."""
    sequences: list[Sequence] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    """Workers on which legs of a request of several sequences were started."""
    outcome: str = "finished"
    """How the first sequence ended that did not finish; "finished" where all did."""
    canary: bool = False
    """Whether the request is the router's own: see canaries.py."""
    deaths: int = 0
    """Workers that may have died of it: see deaths.py."""
    prompt_tokens: int = field(init=False)
    """As whoever asked says, or else the first worker whose hook ended an output; 0: not known."""
    frontend: int = field(init=False)
    submit: router_pb2.Submit = field(init=False)
    """The message of the event, which has no task."""
    task: bytes = field(init=False)
    """The task, without its prompt once no worker is to run the request any more."""
    chunk_names: tuple[bytes, ...] = field(init=False)
    let_go_bytes: int = 0
    """What the prompt took that the task no longer has."""
    voucher: common_pb2.Voucher | None = field(init=False)
    context_only: bool = field(init=False)
    """A copy of the message's field, which is read too often for a message's field."""
    first_span: int = field(init=False)
    needs: Needs = field(init=False)
    prompt: Prompt = field(init=False)

    def __post_init__(self, asked: Submit) -> None:
        self.frontend, self.submit, self.task = asked.frontend, asked.message, asked.task
        self.chunk_names = asked.chunk_names
        self.voucher, self.first_span = asked.voucher, asked.first_span
        self.context_only = self.submit.context_only
        self.prompt_tokens = known = self.submit.prompt_tokens
        tokens = known + (self.submit.max_tokens or 1) if known else 0
        self.needs = asked.needs._replace(tokens=tokens)
        self.prompt = Prompt.of(
            asked.message, len(self.task), asked.prompt_blocks, request=self.number
        )

    @property
    def half(self) -> bool:
        """Whether one phase of the request runs alone."""
        return self.context_only or self.voucher is not None

    @property
    def may_run(self) -> bool:
        """Whether a leg of it may still be started. Asked of the last sequences first: they start
        last.
        """
        return any(each.may_run for each in reversed(self.sequences))

    @property
    def started(self) -> bool:
        """Whether a sequence has run, or runs: hooks may have seen its output."""
        return any(each.begun_at is not None for each in self.sequences)


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    number: int
    output_index: int
    rank: tuple[int, float, int]
    """The place among the sequences of its flow, lowest first: by priority, when its first token is
    due, then arrival. Unique."""
    queued_at: float
    queue_cause: str = ""
    """Why it did not leave the queue at once when it came there last, for people."""
    begun_at: float | None = None
    """When its legs of this or the last attempt were started."""
    ahead: int = 0
    """Tokens that its prefill worker had to compute then until its first one, its own included."""
    pace: Pace | None = None
    """The pace that is told how long prefill took, where both phases run; None for a canary."""
    stage: RoutedStage = RoutedStage.QUEUED
    prefill: Leg | None = None
    decode: Leg | None = None
    room: int = 0
    """0: none. Where it has a voucher, that of the parked KV."""
    judged: bool = False
    """Prefill's verdict of this attempt is known."""
    prefill_unsent: bool = False
    """This attempt's prefill leg never left for its worker, which has been lost."""
    retries: int = 0
    pair: Pair | None = None
    """The pair of this or the last attempt."""
    avoided: Pair | None = None
    """The pair that failed; a retry takes another."""
    no_room_at: frozenset[str] = frozenset()
    """Prefill workers that may not park its KV, as they said; another may."""
    failure: TandemError | None = None
    regenerations: int = 0
    overlay: bytes = b""
    """Laid over the task since the last regeneration."""
    made: Made | None = None
    """Tokens that the engine has made of a resumable sequence."""
    left: GiveVoucher | None = None
    """What a context-only one leaves, once its leg has closed in good order."""
    moments: list[Moment] | None = None
    """Moments for the story and the span; None: an untraced sequence behind the first MOST_TOLD."""
    outcome: str = ""
    """How it ended: an outcome, or an error's code."""
    ended_at: float = 0.0

    @property
    def may_run(self) -> bool:
        """Whether a leg of it may still be started: what decodes runs again where it may be resumed
        or classifiers have it so, and not what goes on from a voucher.
        """
        if self.stage is not RoutedStage.DECODING:
            return self.stage is not RoutedStage.ENDED
        if self.made is not None and self.made.may_serve:
            return True
        if self.decode is None or self.request.voucher is not None:
            return False
        profile = self.decode.worker.profile
        return profile.has_classifiers or profile.may_judge

    @property
    def span(self) -> int:
        """The one that its legs' spans belong to; 0: they are not traced."""
        first, parent = self.request.first_span, self.request.submit.parent_span
        return first + self.output_index if first else parent

    def note(
        self,
        now: float,
        name: MomentName,
        phase: str = "",
        code: str = "",
        prefill: ChosenWorker | None = None,
        decode: ChosenWorker | None = None,
        way: WayTaken | None = None,
        ahead: Ahead | None = None,
        times: LegTimes | None = None,
        usual: float = NOTHING,
    ) -> None:
        """Remember a moment, for its story and its span, as long as it has not ended."""
        moments = self.moments
        if moments is not None and len(moments) < MOST_MOMENTS and not self.outcome:
            at = round(now - self.request.arrived, 6)
            moment = Moment(
                at, name, phase, code, prefill, decode, way, ahead=ahead, times=times, usual=usual
            )
            moments.append(moment)

    def note_queue_cause(self, cause: str, holders: Holders | None, workers: Rejected) -> None:
        """Remember why it waits, with the moment at which it was queued."""
        self.queue_cause = cause
        moments = self.moments
        if moments and moments[-1].name == "queued":
            moments[-1] = msgspec.structs.replace(
                moments[-1], cause=cause, holders=holders, workers=workers
            )

    def traced(self, error: TandemError | None) -> SequenceTraced:
        """The moments, times and outcome of an ended sequence, for its span."""
        return SequenceTraced(
            submit=self.request.submit,
            span=self.span,
            output_index=self.output_index,
            arrived=self.request.arrived,
            ended=self.ended_at,
            outcome=self.outcome,
            error=error,
            moments=tuple(self.moments or ()),
        )


@dataclass(slots=True, eq=False)
class Leg:
    number: int
    phase: Phase
    worker: Worker
    sequence: Sequence
    tokens: int
    """Tokens that count as load: prefill computes them of the prompt; decode holds the whole prompt
    and the expected output.
    """
    usual: Pace | None = None
    """How long legs of its phase have computed or generated of late; None: nobody measures."""
    fresh: Blocks = ()
    """Prompt blocks that this leg adds to its worker's prefix cache."""
    held: bool = False
    """A decode leg that must not send before it is released."""
    settle_by: float | None = None
    """When a cancelled leg is overdue; None: it is not cancelled."""
    overdue: bool = False
