"""The output hook's contract: what a hook is given, and what it may answer. Standard library only.

A hook is a callable class, built once in each worker process without arguments. It is called in
both phases, on every chunk of every sequence, after detokenisation and stop strings and before
anything is sent:

    class UpperCase:
        def __call__(self, chunk: Chunk) -> Verdict:
            return emit(chunk.text_diff.upper())

The prefill and the decode worker each run their own instance under their own request_id; nothing is
shared (S0-034). A hook that raises, or answers with something else than a verdict, fails its
request closed: nothing of that chunk is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["prefill", "decode"]
Action = Literal["emit", "suppress", "terminate"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Chunk:
    """One piece of one sequence's output. Hooks must not keep it: keep what they need, keyed by
    `request_id`.
    """

    request_id: int
    """This phase's own number of the sequence's request, unique in this process and never reused.
    """
    output_index: int
    """Which of the request's n outputs: 0 .. n-1. Key state by (request_id, output_index)."""
    text_diff: str
    """Text of this chunk, already cut at stop strings. May be empty: on the final call, or inside a
    multi-byte character.
    """
    text: str
    """All text of the sequence so far as the model wrote it, this chunk included; not what earlier
    verdicts made of it.
    """
    token_ids_diff: Sequence[int]
    """Token ids of this chunk."""
    is_final: bool
    """True on exactly one call for each sequence: its last (S0-022)."""
    aborted: bool
    """True on a final call that was not the model's doing: cancelled, timed out, failed. Its
    verdict is not applied.
    """
    streaming: bool
    """Whether the client asked for a stream. The calls are the same either way."""
    phase: Phase
    trace_id: str
    """Joins the calls of both phases that belong to one client request."""
    model: str


@dataclass(slots=True, frozen=True)
class Verdict:
    """What becomes of a chunk. Build it with `emit`, `suppress` or `terminate`."""

    action: Action
    text: str = ""
    reason: str = ""


def emit(text: str) -> Verdict:
    """Show `text` in place of the chunk's. Token ids and logprobs stay the model's (S0-009)."""
    return Verdict("emit", text=text)


def suppress() -> Verdict:
    """Show nothing of this chunk, in any channel: text, token ids, logprobs (S0-010)."""
    return Verdict("suppress")


def terminate(reason: str) -> Verdict:
    """Withhold this chunk and end the whole request, all n outputs; `reason` becomes the
    stop_reason (S0-013, S0-029).
    """
    return Verdict("terminate", reason=reason)


class Hook(Protocol):
    """What a hook class must offer."""

    def __call__(self, chunk: Chunk) -> Verdict: ...


# The names under which hooks for TensorRT-LLM were written: they run here once their import line is
# changed.
PostProcessorHookChunk = Chunk
PostProcessorHookVerdict = Verdict
