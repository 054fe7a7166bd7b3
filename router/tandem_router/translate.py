"""Between the wire's messages and the core's values."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import get_type_hints

from google.protobuf.message import DecodeError

from tandem import canary, ids, timeline
from tandem.endings import OUTCOME_FROM_WIRE, Outcome
from tandem.errors import InternalError, WorkerError, from_proto
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router.core import actions, events
from tandem_router.core.values import (
    MOST_MS,
    Bounds,
    Fingerprint,
    Phase,
    Profile,
)

MOST_FIRST_TOKENS = 1
"""A context-only leg brings no more: prefill makes one, and a hook may hold it back."""
DIGEST_BYTES = 32
MAX_REASON_CHARACTERS = 16 * 1024
"""A worker's reason for an end; what is longer is cut. A request of many outputs tells each."""
MAX_OBSTACLE_CHARACTERS = 200
"""Why a worker's sequence could not be resumed: a client reads it."""
MAX_DESCRIPTION_BYTES = 256 * 1024
"""A worker's description of itself: parts of it go to every frontend."""
ANY_MODEL = ""
"""Among those that come: no worker that is listed has said yet what it serves."""
_SAME = [
    name
    for name, kind in get_type_hints(Profile).items()
    if kind in (str, bool) and name in worker_pb2.WorkerDescription.DESCRIPTOR.fields_by_name
]
"""Fields of a profile that are a description's as it is: texts and flags."""
_PHASES = {common_pb2.PHASE_PREFILL: Phase.PREFILL, common_pb2.PHASE_DECODE: Phase.DECODE}


def profile(description: worker_pb2.WorkerDescription) -> Profile:
    """Raises WorkerError where the worker names no phase, or describes what no request fits: its
    limits would be those of all that it is paired with.
    """
    phase = _PHASES.get(description.phase)
    if phase is None:
        raise WorkerError("the worker names no phase")
    if description.ByteSize() > MAX_DESCRIPTION_BYTES:
        raise WorkerError("the worker's description is too large")
    limits = description.limits
    if not limits.context_length or not limits.vocabulary:
        raise WorkerError("the worker has no context or no vocabulary")
    return Profile(
        **{name: getattr(description, name) for name in _SAME},
        phase=phase,
        fingerprint=_fingerprint(description.fingerprint),
        max_sequences=limits.max_sequences,
        context_length=limits.context_length,
        vocabulary=limits.vocabulary,
        logits_processors=frozenset(description.logits_processors),
        lora_adapters=frozenset(description.lora_adapters),
        cannot_sample=frozenset(description.cannot_sample),
        draining=description.load.draining,
        moved_kv=description.load.moved_kv or not description.load.HasField("moved_kv"),
    )


def _fingerprint(message: common_pb2.Fingerprint) -> Fingerprint:
    fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    known = common_pb2.Fingerprint(**fields)
    # They follow what is known.
    unknown = message.SerializeToString(deterministic=True)[known.ByteSize() :]
    return Fingerprint(**fields, unknown_fields=unknown)


def leg_events(worker: str, messages: Iterable[worker_pb2.LegEvent]) -> list[events.Event]:
    """A worker's events in order; kinds that a newer worker may add are left out."""
    return [event for message in messages if (event := _leg_event(worker, message)) is not None]


def _leg_event(worker: str, message: worker_pb2.LegEvent) -> events.Event | None:
    match message.WhichOneof("event"):
        case "started":
            return events.LegStarted(worker, message.leg)
        case "verdict":
            verdict = message.verdict
            return events.LegVerdict(
                worker,
                message.leg,
                verdict.terminate,
                verdict.reason[:MAX_REASON_CHARACTERS],
                verdict.completion_tokens,
                verdict.prompt_tokens,
            )
        case "closed":
            return _closed(worker, message)
        case "parked":
            return _parked(worker, message)
        case "made":
            made = message.made
            obstacle = made.obstacle[:MAX_OBSTACLE_CHARACTERS]
            tokens = min(made.tokens, len(made.steps))  # each takes a byte at least
            return events.LegMade(worker, message.leg, made.steps, tokens, made.over, obstacle)
    return None


def _parked(worker: str, message: worker_pb2.LegEvent) -> events.Event | None:
    """What cannot be is left out: its leg closes without."""
    parked = message.parked
    token_ids, logprobs = tuple(parked.token_ids), tuple(parked.logprobs)
    fits = len(token_ids) <= MOST_FIRST_TOKENS and len(logprobs) in (0, len(token_ids))
    if not (fits and all(map(isfinite, logprobs)) and len(parked.task_digest) == DIGEST_BYTES):
        return None
    return events.LegParked(
        worker=worker,
        leg=message.leg,
        token_ids=token_ids,
        logprobs=logprobs,
        task_digest=parked.task_digest,
        lease_seconds=parked.lease_ms / 1000,
    )


def _closed(worker: str, message: worker_pb2.LegEvent) -> events.Event:
    closed = message.closed
    outcome = OUTCOME_FROM_WIRE.get(closed.outcome)
    if outcome is None:
        error = InternalError("the worker closed a leg without saying how")
        return events.LegClosed(worker, message.leg, Outcome.FAILED, error=error)
    try:
        overlay = _overlay(closed.overlay) if closed.overlay else b""
    except DecodeError:
        error = InternalError("the worker does not say how to run the sequence again")
        return events.LegClosed(worker, message.leg, Outcome.FAILED, error=error)
    return events.LegClosed(
        worker,
        message.leg,
        outcome,
        reason=closed.reason[:MAX_REASON_CHARACTERS],
        error=from_proto(closed.error) if closed.HasField("error") else None,
        retryable=closed.retryable,
        overlay=overlay,
        worker_died=closed.worker_died,
        times=timeline.leg_times(closed.report) if closed.HasField("report") else None,
    )


def _overlay(given: bytes) -> bytes:
    """What a worker may lay over a task: how its next run is sampled, and nothing else. Raises
    DecodeError for bytes that are no tandem.v1.Task.
    """
    again = common_pb2.Task.FromString(given).regeneration
    return common_pb2.Task(regeneration=again).SerializeToString()


def resumption(made: bytes) -> bytes:
    """What is laid over the task of a sequence that is resumed: nothing but what its worker said
    that it made. Raises DecodeError where that cannot be read.
    """
    if not made:
        return b""
    resume = common_pb2.Resumption.FromString(made)
    return common_pb2.Task(resume=resume).SerializeToString()


def canary_task(profile: Profile, trace_id: str = "") -> bytes:
    """A serialised Task, for workers of a profile. `trace_id`: empty for a new one."""
    model = profile.fingerprint.model
    task = canary.task(trace_id or ids.new_trace_id(), model, profile.vocabulary)
    return task.SerializeToString()


def sequence_end(action: actions.EndSequence) -> router_pb2.SequenceEnd:
    error = None if action.error is None else action.error.to_proto()
    return router_pb2.SequenceEnd(
        sequence=action.sequence,
        error=error,
        stop_reason=action.stop_reason,
        refused=action.refused,
        completion_tokens=action.completion_tokens,
    )


def queue_wait(action: actions.QueueWait) -> router_pb2.QueueWait:
    return router_pb2.QueueWait(
        sequence=action.sequence, seconds=action.seconds, cause=action.cause
    )


def fleet(models: Iterable[router_pb2.ServedModel], bounds: Bounds) -> router_pb2.Fleet:
    return router_pb2.Fleet(
        models=models,
        expected=sorted(bounds.expected_models),
        pair_wait_ms=min(int(bounds.pair_wait_seconds * 1000), MOST_MS),
    )


def promptless(task: bytes) -> bytes:
    """A serialised Task without its prompt. What cannot be read is left as it is."""
    try:
        prompt = common_pb2.TaskPrompt.FromString(task)
    except DecodeError:
        return task
    prompt.ClearField("prompt_token_ids")
    prompt.ClearField("prompt_text")
    return prompt.SerializeToString()
