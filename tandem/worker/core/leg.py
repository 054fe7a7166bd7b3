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
from dataclasses import dataclass

from tandem.endings import OUTCOME_TO_WIRE, Outcome
from tandem.engine.base import KvTransfer
from tandem.errors import TandemError
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.columns import Draft
from tandem.worker.core.outgoing import ROW_BYTES, Outgoing
from tandem.worker.core.output import Output


class Stage(enum.Enum):
    """Where a leg is; see the drawing above."""

    WAITING = "waiting"
    RUNNING = "running"
    RULING = "ruling"
    ENDING = "ending"
    HELD = "held"
    LEAVING = "leaving"
    CLOSED = "closed"
    SILENCED = "silenced"


_ANY_END = {Stage.SILENCED, Stage.LEAVING}
NEXT: dict[Stage, set[Stage]] = {
    Stage.WAITING: {Stage.RUNNING, Stage.ENDING} | _ANY_END,
    Stage.RUNNING: {Stage.RULING, Stage.ENDING, Stage.HELD} | _ANY_END,
    Stage.RULING: {Stage.ENDING, Stage.HELD} | _ANY_END,
    Stage.ENDING: {Stage.HELD} | _ANY_END,
    Stage.SILENCED: {Stage.LEAVING},
    Stage.HELD: {Stage.LEAVING},
    Stage.LEAVING: {Stage.CLOSED},
    Stage.CLOSED: set(),
}
"""What may follow each state."""


@dataclass(slots=True, frozen=True)
class Closing:
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
        """Its output came to an end; it did not fail, and nobody cancelled it."""
        return self.outcome in (Outcome.FINISHED, Outcome.TERMINATED)

    def event(self, leg: int) -> worker_pb2.LegEvent:
        """As the router is told of leg number `leg`."""
        closed = worker_pb2.LegClosed(
            outcome=OUTCOME_TO_WIRE[self.outcome],
            reason=self.reason,
            error=None if self.error is None else self.error.to_proto(),
            retryable=self.retryable,
            overlay=self.overlay,
            worker_died=self.worker_died,
        )
        return worker_pb2.LegEvent(leg=leg, closed=closed)


@dataclass(slots=True, eq=False, kw_only=True)
class Leg:
    """What the core knows of a sequence that this worker runs. Only the core changes it."""

    request_id: int
    link: int
    """The router's stream that it came by."""
    number: int
    """The router's own for it."""
    outgoing: Outgoing
    """What waits for that router."""
    destination: int
    sequence: int
    output_index: int
    trace_id: str
    parent_span: int
    """The router's; 0: the leg is not traced."""
    prompt_tokens: int
    regenerations: int
    """Earlier runs of the sequence, whose output classifiers blocked."""
    spent_tokens: int
    """What those generated."""
    want_text: bool
    want_token_ids: bool
    want_report: bool
    started_at: float
    deadline: float
    output: Output
    held: Draft | None
    """Output that waits for the router's release; None: nothing waits."""
    guard: SequenceGuard | None
    """Its way past the classifiers, where there are any."""
    straight: bool
    """Nobody judges or cuts its output: a delta of tokens alone becomes a row as it is."""
    stage: Stage = Stage.WAITING
    engine_holds: bool = True
    """The engine has not said yet that it let go of the request."""
    first_at: float | None = None
    """When the engine brought the first of its output."""
    closing: Closing | None = None
    """How it ends, from ENDING on."""
    kv: KvTransfer | None = None
    cached_tokens: int = 0
    scores: str = ""
    """What classifiers scored, as JSON, where the client asked for it."""

    @property
    def group(self) -> tuple[int, int, int]:
        """The n sequences of one request share it."""
        return self.link, self.destination, self.sequence - self.output_index

    def say(self, event: worker_pb2.LegEvent) -> None:
        """Tell the router of an event."""
        self.outgoing.events.append(event)

    def show(
        self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None
    ) -> None:
        """A row for the client, now or at the release."""
        draft = self.held
        if draft is None:
            draft = self.outgoing.draft(self.destination)
        count = len(token_ids)
        if not self.want_text:
            text = ""
        draft.add(self.sequence, count, text, token_ids if self.want_token_ids else ())
        size = ROW_BYTES + len(text) + 4 * count
        if logprobs is not None and count:
            entry = _logprobs(self.sequence, token_ids, logprobs)
            draft.logprobs.append(entry)
            size += 8 * len(entry.top_token_id)
        if self.held is None:
            self.outgoing.backlog += size

    def report(self, *, phase: common_pb2.Phase.ValueType, worker: str, now: float) -> None:
        """What this phase did, where the client asked for it."""
        if not self.want_report:
            return
        output = self.output
        report = common_pb2.PhaseReport(
            sequence=self.sequence,
            phase=phase,
            worker=worker,
            request_id=self.request_id,
            phase_seconds=now - self.started_at,
            emitted=output.emitted,
            suppressed=output.suppressed,
            terminated=output.terminated,
            hook_seconds=output.hook_seconds,
        )
        if self.kv is not None:
            report.kv_bytes, report.kv_seconds = self.kv.bytes, self.kv.seconds
            report.kv_transport = self.kv.transport
        self.draft().reports.append(report)

    def release(self) -> None:
        """Let go what was held."""
        held, self.held = self.held, None
        if held is None:
            return
        draft = self.draft()
        draft.sequences += held.sequences
        draft.token_counts += held.token_counts
        draft.texts += held.texts
        draft.token_ids += held.token_ids
        draft.logprobs += held.logprobs
        draft.finishes += held.finishes
        draft.reports += held.reports
        self.outgoing.backlog += sum(map(len, held.texts)) + ROW_BYTES * len(held.texts)

    def draft(self) -> Draft:
        """Where its rows are written."""
        return self.outgoing.draft(self.destination) if self.held is None else self.held


def _logprobs(
    sequence: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> common_pb2.TokenLogprobs:
    entry = common_pb2.TokenLogprobs(
        sequence=sequence, token_id=token_ids, logprob=[chosen for chosen, _ in logprobs]
    )
    entry.top_count = min(len(top) for _, top in logprobs)
    for _, alternatives in logprobs:
        for token_id, logprob in alternatives[: entry.top_count]:
            entry.top_token_id.append(token_id)
            entry.top_logprob.append(logprob)
    return entry
