"""One leg: a sequence's stay in this worker, its states, and how it ends.

                    begun
                      │
                   WAITING       the engine has brought no output yet
                      │ first output
                   RUNNING       each step's output is cut, ruled on by hooks, judged, written
                      │ the last of the output was cut: the engine's end, or a stop string
                   RULING        hooks have yet to rule on what was cut (skipped if none)
                      │ the last ruling, or a terminate
                   ENDING        how it ends is known; classifiers, if any, judge the end
                      │ the end is written
                    HELD         its end, and more, waits for the router's release (skipped else)
                      │ release
                   LEAVING       nothing more is shown; the engine has yet to let go of it
                      │ the engine let go
                   CLOSED        the router was told

    WAITING, RUNNING, RULING, ENDING ── a sibling was terminated ──► SILENCED
    every state above LEAVING, SILENCED too ── failure, cancel, deadline, link lost ──► LEAVING

Whoever leaves WAITING and RUNNING wants no more output: where the engine has not let go by itself,
it is asked to, at that moment and never again. `NEXT` is this drawing as data.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

from tandem.byte_budget import Allotment
from tandem.endings import OUTCOME_TO_WIRE, Outcome
from tandem.engine.base import EngineRequest, KvTransfer, PromptLogprobs
from tandem.errors import TandemError
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.ledger import LedgerAccount, Stay
from tandem.worker.core.outgoing import (
    CHARACTER_BYTES,
    MAX_ROW_BYTES,
    ROW_BYTES,
    Outgoing,
    Parcel,
    WaitingRow,
    encoded_logprobs,
    logprobs_bytes,
)
from tandem.worker.core.output import SequenceOutput, token_logprobs
from tandem.worker.core.replay import Replay


class LegStage(enum.StrEnum):
    """Where a leg is; see the drawing above."""

    WAITING = "waiting"
    RUNNING = "running"
    RULING = "ruling"
    ENDING = "ending"
    HELD = "held"
    LEAVING = "leaving"
    CLOSED = "closed"
    SILENCED = "silenced"


_ANY_END = {LegStage.SILENCED, LegStage.LEAVING}
NEXT: dict[LegStage, set[LegStage]] = {
    LegStage.WAITING: {LegStage.RUNNING, LegStage.ENDING} | _ANY_END,
    LegStage.RUNNING: {LegStage.RULING, LegStage.ENDING, LegStage.HELD} | _ANY_END,
    LegStage.RULING: {LegStage.ENDING, LegStage.HELD} | _ANY_END,
    LegStage.ENDING: {LegStage.HELD} | _ANY_END,
    LegStage.SILENCED: {LegStage.LEAVING},
    LegStage.HELD: {LegStage.LEAVING},
    LegStage.LEAVING: {LegStage.CLOSED},
    LegStage.CLOSED: set(),
}
"""What may follow each state."""
OPEN = LegStage.WAITING, LegStage.RUNNING, LegStage.RULING, LegStage.ENDING
"""States in which what is shown of a leg may yet change."""


class Closing(Struct, frozen=True):
    """How a leg ends. The router is told once the engine holds nothing for the leg any more."""

    outcome: Outcome
    reason: str = ""
    error: TandemError | None = None
    retryable: bool = False
    worker_died: bool = False
    """The engine died, and took all legs with it."""
    overlay: bytes = b""
    """What replaces fields of the task, where the outcome is REGENERATE."""

    @property
    def by_itself(self) -> bool:
        """Whether the leg's output came to its own end: no failure, no cancel."""
        return self.outcome in (Outcome.FINISHED, Outcome.TERMINATED)

    def event(self, leg: int, report: common_pb2.PhaseReport | None = None) -> worker_pb2.LegEvent:
        """As the router is told of leg number `leg`. `report`: of a leg that began."""
        closed = worker_pb2.LegClosed(
            outcome=OUTCOME_TO_WIRE[self.outcome],
            reason=self.reason,
            error=None if self.error is None else self.error.to_proto(),
            retryable=self.retryable,
            overlay=self.overlay,
            worker_died=self.worker_died,
            report=report,
        )
        return worker_pb2.LegEvent(leg=leg, closed=closed)


class Start(Struct, frozen=True, kw_only=True):
    """A leg that a router wants, and whose task can run."""

    link: int
    command: worker_pb2.StartLeg
    task: common_pb2.Task
    request: EngineRequest
    output: SequenceOutput
    parking: worker_pb2.LegParked | None = None
    """A context-only leg: what the router is to be told, but for the token."""
    obstacle: str = ""
    """Why no other worker could go on with it; empty: another could."""
    own_bytes: int
    """Bytes of the task that the leg alone keeps; 0 where legs share a kept task."""
    intake_seconds: float = 0.0
    """CPU time in which the task was read and made into a request."""


class Leg(Struct, eq=False, kw_only=True):
    """What the core knows of a sequence that this worker runs. Only the core changes it."""

    request_id: int
    link: int
    """The router's stream that it came by."""
    number: int
    """The router's own for it."""
    outgoing: Outgoing
    """What waits for that router."""
    allotment: Allotment
    """What its task takes of the budget, and what classifiers hold of its output."""
    destination: int
    sequence: int
    output_index: int
    trace_id: str
    parent_span: int
    """The router's; 0: the leg is not traced."""
    prompt_tokens: int
    to_compute: int
    """Prompt tokens that the router does not expect in the prefix cache."""
    stay: Stay
    """What the leg takes of the worker's time."""
    regenerations: int
    """Earlier runs of the sequence, whose output classifiers blocked."""
    spent_tokens: int
    """Tokens that earlier runs generated."""
    want_text: bool
    want_token_ids: bool
    want_logprobs: bool
    """The client does; classifiers may be given them where it does not."""
    want_report: bool
    want_cost: bool
    intake_seconds: float
    """CPU time in which its task was read, before the leg began."""
    started_at: float
    deadline: float
    output: SequenceOutput
    guard: SequenceGuard | None
    """The leg's way past the classifiers, where there are any."""
    token_bytes: int
    """Bytes of a token that classifiers hold."""
    straight: bool
    """Nobody judges or cuts its output: a delta of tokens alone becomes a row as it is."""
    hooked: bool
    """Whether the output passes hooks before it is shown."""
    kv_peer: str = ""
    """DECODE: the prefill engine that its KV comes from; empty in prefill, which is not told."""
    canary: bool = False
    """Whether the leg is a router's canary, of no client: nobody keeps a record of it."""
    parking: worker_pb2.LegParked | None = None
    """A context-only leg: what the router is to be told before its end. Until then the KV that the
    engine parks is of no use to anybody else."""
    says_made: bool = False
    """The router is told what the engine makes, so that another pair can go on from it."""
    obstacle: str = ""
    """Why no other pair could go on; the router is told the reason instead."""
    replay: Replay | None = None
    """Output that a lost worker's engine had made, until this leg has replayed it."""
    resumes: bool = False
    """Whether the leg goes on from parked KV; the first half showed the first token."""
    stage: LegStage = LegStage.WAITING
    engine_holds: bool = True
    """The engine has not said yet that it let go of the request."""
    held: bool = False
    """Whether the output waits for the router's release, in the leg's parcel."""
    rows: int = 0
    """Shown so far, those in its parcel included."""
    parcel: Parcel | None = None
    """Output that waits, or that has all left since; see `waiting`."""
    first_at: float | None = None
    """When the engine brought the first of its output."""
    let_go_at: float | None = None
    """When the engine held nothing more of it."""
    engine_times: common_pb2.EngineTimes | None = None
    """The engine's own times of the leg, as far as the engine has said them."""
    asked_at: float = 0.0
    """When classifiers were asked last."""
    classifier_seconds: float = 0.0
    """Time in which classifiers had a question."""
    closing: Closing | None = None
    """How it ends, from ENDING on."""
    kv: KvTransfer | None = None
    cached_tokens: int = 0
    guarded_bytes: int = 0
    """Counted of what classifiers hold."""
    asked_tokens: int = 0
    """Generated by the end of what classifiers were last asked about."""
    scores: str = ""
    """What classifiers scored, as JSON, where the client asked for it."""

    @property
    def group(self) -> tuple[int, int, int]:
        """The n sequences of one request share it."""
        return self.link, self.destination, self.sequence - self.output_index

    def generated_token_seconds(self, now: float) -> float:
        """Token-seconds of the KV of what was generated, as if at one pace since the first."""
        if self.first_at is None:
            return 0.0
        until = now if self.let_go_at is None else self.let_go_at
        return self.output.completion_tokens * (until - self.first_at) / 2

    @property
    def generated_tokens(self) -> int:
        """What the client's usage counts: this run's, and those of earlier runs."""
        return self.spent_tokens + self.output.completion_tokens

    def say(self, event: worker_pb2.LegEvent) -> None:
        """Tell the router of an event."""
        self.outgoing.events.append(event)

    def say_behind(self, event: worker_pb2.LegEvent) -> None:
        """Tell the router of an event after all of its output."""
        parcel = self.waiting
        if parcel is None:
            self.say(event)
        else:
            parcel.events.append(event)

    def say_closed(self, phase: common_pb2.Phase.ValueType, now: float) -> None:
        """Tell the router that the leg has ended, after the leg's output."""
        assert self.closing is not None
        report = None if self.canary else self._report(phase, now)
        self.say_behind(self.closing.event(self.number, report))

    def show_prompt(self, prompt: PromptLogprobs) -> None:
        """Show the client the log-probabilities of all of the prompt; the first token has none."""
        parcel = self.waiting or self._new_parcel()
        first, *rest = prompt.token_ids
        parcel.add(WaitingRow(1, "", (first,), [(0.0, ())], place=0))
        if rest:
            parcel.add(WaitingRow(len(rest), "", rest, token_logprobs(prompt.logprobs), place=1))

    def show(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None,
        *,
        replaces: bool = False,
    ) -> None:
        """A row for the client, behind what waits. `replaces`: the text is a classifier's, and for
        clients of token ids too.
        """
        count = len(token_ids)
        if not (self.want_text or replaces):
            text = ""
        if not self.want_logprobs:
            logprobs = None
        size = ROW_BYTES + CHARACTER_BYTES * len(text) + 4 * count
        if logprobs:
            size += count * logprobs_bytes(logprobs)
        if self.parcel is not None or size > MAX_ROW_BYTES:
            parcel = self.waiting or (self._new_parcel() if size > MAX_ROW_BYTES else None)
            if parcel is not None:
                self.rows += parcel.add(WaitingRow(count, text, token_ids, logprobs or None))
                return
        outgoing, offset = self.outgoing, self.rows
        self.rows = offset + 1
        # Each row comes here: it finds its draft by itself, and calls only for a new one.
        draft = outgoing.drafts.get(self.destination) or outgoing.draft(self.destination)
        draft.add(self.sequence, offset, count, text, token_ids if self.want_token_ids else ())
        if logprobs:
            draft.rest.logprobs.append(encoded_logprobs(self.sequence, token_ids, logprobs))
        outgoing.backlog += size

    def finish(self, finish: common_pb2.Finish) -> None:
        """Send the leg's finish to the client, after all rows."""
        finish.rows = self.rows
        size = CHARACTER_BYTES * (len(finish.external_scores) + len(finish.stop_reason))
        parcel = self.waiting
        if parcel is None and size > MAX_ROW_BYTES:
            parcel = self._new_parcel()
        if parcel is None:
            self.outgoing.draft(self.destination).rest.finish.append(finish)
        else:
            parcel.finish = finish

    @property
    def waiting(self) -> Parcel | None:
        """The leg's output that waits, behind which all further output goes."""
        if self.parcel is not None and self.parcel.sent:
            self.parcel = None
        return self.parcel

    def hold(self) -> None:
        """Let nothing be shown before `release`."""
        self.held, self.parcel = True, self._empty_parcel()

    def release(self) -> None:
        """Let held output go."""
        if self.held:
            self.held = False
            assert self.parcel is not None
            self.outgoing.parcels.append(self.parcel)

    def drop(self) -> None:
        """Show nobody the output that still waits."""
        parcel, self.parcel = self.waiting, None
        if parcel is not None:
            parcel.drop()
            if not self.held:
                self.outgoing.parcels.remove(parcel)
        self.held = False

    def _empty_parcel(self) -> Parcel:
        return Parcel(
            destination=self.destination,
            sequence=self.sequence,
            shows_ids=self.want_token_ids,
            offset=self.rows,
        )

    def wait_in_parcel(self) -> None:
        """Much of it comes at once: let it leave bit by bit."""
        if self.waiting is None:
            self._new_parcel()

    def _new_parcel(self) -> Parcel:
        """A new parcel of the leg's output, which leaves as soon as it can."""
        parcel = self.parcel = self._empty_parcel()
        self.outgoing.parcels.append(parcel)
        return parcel

    def report(
        self, *, phase: common_pb2.Phase.ValueType, worker: str, now: float, taken: LedgerAccount
    ) -> None:
        """What this phase did, and took of the worker, as far as the client is to know."""
        if self.want_report:
            report = self._report(phase, now)
            report.worker = worker
        else:
            report = common_pb2.PhaseReport(phase=phase, phase_seconds=now - self.started_at)
        report.sequence = self.sequence
        if self.want_cost:
            report.worker_seconds = taken.seconds
            report.kv_token_seconds = taken.kv_token_seconds + self.generated_token_seconds(now)
        parcel = self.waiting
        if parcel is None:
            self.outgoing.draft(self.destination).rest.report.append(report)
        else:
            parcel.report = report

    def _report(self, phase: common_pb2.Phase.ValueType, now: float) -> common_pb2.PhaseReport:
        """What this phase did so far, and what became of its time."""
        output, began = self.output, self.started_at
        report = common_pb2.PhaseReport(
            phase=phase,
            request_id=self.request_id,
            phase_seconds=now - began,
            emitted=output.emitted,
            suppressed=output.suppressed,
            terminated=output.terminated,
            hook_seconds=output.hook_seconds,
            first_seconds=0.0 if self.first_at is None else self.first_at - began,
            engine_seconds=0.0 if self.let_go_at is None else self.let_go_at - began,
            engine=self.engine_times,
            classifier_seconds=self.classifier_seconds,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            tokens=output.completion_tokens,
        )
        if self.kv is not None:
            report.kv_bytes, report.kv_seconds = self.kv.bytes, self.kv.seconds
            report.kv_transport = self.kv.transport
        return report
