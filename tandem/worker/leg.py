"""One leg: a sequence's stay in this worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tandem.engine.base import KvTransfer
from tandem.errors import TandemError
from tandem.hooks.piece import Piece
from tandem.text.stop_strings import TokenLogprob
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.columns import Draft
from tandem.worker.classifying import Guarded
from tandem.worker.link import ROW_BYTES, RouterLink
from tandem.worker.output import Output

Outcome = Literal["finished", "terminated", "cancelled", "failed", "regenerate"]
Group = tuple[RouterLink, int, int]
"""The n sequences of one request: link, destination, and the number of its first sequence."""
_OUTCOMES: dict[Outcome, worker_pb2.LegClosed.Outcome.ValueType] = {
    "finished": worker_pb2.LegClosed.OUTCOME_FINISHED,
    "terminated": worker_pb2.LegClosed.OUTCOME_TERMINATED,
    "cancelled": worker_pb2.LegClosed.OUTCOME_CANCELLED,
    "failed": worker_pb2.LegClosed.OUTCOME_FAILED,
    "regenerate": worker_pb2.LegClosed.OUTCOME_REGENERATE,
}


@dataclass(slots=True, frozen=True)
class Closing:
    """How a leg ends. It is said once the engine holds nothing for the leg any more."""

    outcome: Outcome
    reason: str = ""
    error: TandemError | None = None
    retryable: bool = False
    overlay: bytes = b""
    """Of "regenerate": what replaces fields of the task."""

    @property
    def by_itself(self) -> bool:
        """Its output came to an end; it did not fail, and nobody cancelled it."""
        return self.outcome in ("finished", "terminated")

    def event(self, leg: int) -> worker_pb2.LegEvent:
        closed = worker_pb2.LegClosed(
            outcome=_OUTCOMES[self.outcome],
            reason=self.reason,
            error=None if self.error is None else self.error.to_proto(),
            retryable=self.retryable,
            overlay=self.overlay,
        )
        return worker_pb2.LegEvent(leg=leg, closed=closed)


class Leg:
    """What a worker knows of a sequence it runs.

    `over`: its output has ended, by itself or from outside, and later deltas are dropped.
    `muted`: ended by a sibling's terminate; the router's cancel closes it.
    `settled`: the engine holds nothing for it.
    `held`: output that waits for the router's release.
    `guarded`: its way past the classifiers, where there are any.
    `first_at`: when the engine brought the first of its output; 0: it has not.
    `parent_span`: the router's; 0: the leg is not traced.
    `closing`: how it ends; before it is over, classifiers judge the last of its output.
    """

    __slots__ = (
        "cached_tokens",
        "closing",
        "deadline",
        "destination",
        "engine_cancelled",
        "first_at",
        "group",
        "guarded",
        "held",
        "kv",
        "link",
        "muted",
        "number",
        "output",
        "output_index",
        "over",
        "parent_span",
        "prompt_tokens",
        "request_id",
        "sequence",
        "settled",
        "spent_tokens",
        "started",
        "started_at",
        "trace_id",
        "want_report",
        "want_text",
        "want_token_ids",
    )

    def __init__(
        self,
        *,
        link: RouterLink,
        command: worker_pb2.StartLeg,
        task: common_pb2.Task,
        request_id: int,
        prompt_tokens: int,
        output: Output,
        now: float,
    ) -> None:
        self.link = link
        self.number = command.leg
        self.destination = command.destination
        self.sequence = command.sequence
        self.group: Group = (link, command.destination, command.sequence - command.output_index)
        self.output_index = command.output_index
        self.request_id = request_id
        self.trace_id = task.trace_id
        self.parent_span = command.parent_span
        self.prompt_tokens = prompt_tokens
        self.spent_tokens = task.regeneration.spent_tokens
        self.output = output
        self.want_text = task.want_text
        self.want_token_ids = task.want_token_ids
        self.want_report = task.want_report
        self.held: Draft | None = Draft() if command.hold_output else None
        self.started_at = now
        self.first_at = 0.0
        self.deadline = now + command.timeout_ms / 1000
        self.started = False
        self.muted = False
        self.over = False
        self.settled = False
        self.engine_cancelled = False
        self.closing: Closing | None = None
        self.guarded: Guarded | None = None
        self.kv: KvTransfer | None = None
        self.cached_tokens = 0

    def show(self, piece: Piece) -> None:
        """A row for the client, now or at the release."""
        draft = self._draft()
        count = len(piece.token_ids)
        text = piece.text if self.want_text else ""
        draft.add(self.sequence, count, text, piece.token_ids if self.want_token_ids else ())
        size = ROW_BYTES + len(text) + 4 * count
        if piece.extras is not None and count:
            entry = _logprobs(self.sequence, piece.token_ids, piece.extras)
            draft.logprobs.append(entry)
            size += 8 * len(entry.top_token_id)
        if self.held is None:
            self.link.backlog += size

    def finish(self) -> None:
        """The client's last word of a sequence that did not fail."""
        end = self.output.end
        assert end is not None
        self._draft().finishes.append(
            common_pb2.Finish(
                sequence=self.sequence,
                reason=(
                    common_pb2.FINISH_REASON_LENGTH
                    if end.reason == "length"
                    else common_pb2.FINISH_REASON_STOP
                ),
                stop_reason=end.stop_reason,
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.spent_tokens + self.output.completion_tokens,
                cached_tokens=self.cached_tokens,
                withheld=end.withheld,
                external_scores="" if self.guarded is None else self.guarded.wanted_scores,
            )
        )

    def report(self, *, phase: common_pb2.Phase.ValueType, worker: str, now: float) -> None:
        """What this phase did, where the client asked for it."""
        if not self.want_report:
            return
        report = common_pb2.PhaseReport(
            sequence=self.sequence,
            phase=phase,
            worker=worker,
            request_id=self.request_id,
            phase_seconds=now - self.started_at,
        )
        output = self.output
        report.emitted, report.suppressed = output.emitted, output.suppressed
        report.terminated, report.hook_seconds = output.terminated, output.hook_seconds
        if self.kv is not None:
            report.kv_bytes, report.kv_seconds = self.kv.bytes, self.kv.seconds
            report.kv_transport = self.kv.transport
        self._draft().reports.append(report)

    def release(self) -> None:
        """Let go what was held."""
        held, self.held = self.held, None
        if held is None:
            return
        draft = self.link.draft(self.destination)
        draft.sequences += held.sequences
        draft.token_counts += held.token_counts
        draft.texts += held.texts
        draft.token_ids += held.token_ids
        draft.logprobs += held.logprobs
        draft.finishes += held.finishes
        draft.reports += held.reports
        self.link.backlog += sum(map(len, held.texts)) + ROW_BYTES * len(held.texts)

    def _draft(self) -> Draft:
        return self.link.draft(self.destination) if self.held is None else self.held


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
