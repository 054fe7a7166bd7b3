"""What is told of a request, open or ended: plain values, which are JSON as they are.

Names of models, workers and tenants, numbers and codes; never what a prompt or an output says, nor
a message of anybody's code. Times are seconds since the request came.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_OF_ONE_TRACE = 16
"""Requests of one trace id that are told, the last that came: a client's many prompts share it."""
MAX_NAME_CHARACTERS = 200
"""What a worker calls itself is cut to this."""
MomentName = Literal[
    "queued", "pair_chosen", "started", "verdict", "closed", "retry", "regenerate", "resume"
]


class Alternative(msgspec.Struct, frozen=True, gc=False):
    """A worker that could have been chosen."""

    worker: str
    """The worker's address."""
    cost: float
    """The worker's load, which least_loaded compares."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A worker that a policy chose, and the other candidates."""

    worker: str
    name: str
    """As the worker calls itself."""
    cost: float
    candidates: int
    """How many there were, itself included."""
    others: tuple[Alternative, ...]
    """Candidates with the smallest cost, the chosen one left out."""


class WayTaken(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which way a sequence went, and why: see ways.py."""

    name: str
    """pair or aggregated: a values.Way."""
    reason: str
    """A values.Reason."""
    pair_seconds: float = 0.0
    """Predicted for either way, where they were compared."""
    aggregated_seconds: float = 0.0


class Moment(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What happened to a sequence."""

    at: float
    name: MomentName
    phase: str = ""
    """started, verdict, closed: of which leg."""
    code: str = ""
    """verdict: terminate, or empty. closed: its outcome, or an error's code. retry, resume: why."""
    prefill: Choice | None = None
    """pair_chosen: absent for a phase that does not run."""
    decode: Choice | None = None
    way: WayTaken | None = None
    """pair_chosen: absent where one phase runs alone."""
    cause: str = ""
    """queued: why the sequence did not start at once, for people; empty: it did."""


class SequenceStory(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One output of a request."""

    output_index: int
    stage: str
    outcome: str
    """finished, terminated, or an error's code; empty: it has not ended."""
    seconds: float
    """When it ended; 0: it has not."""
    moments: tuple[Moment, ...]
    """The sequence's first moments."""


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Why no pair takes a worker. A worker has one for each reason."""

    worker: str
    phase: str
    reason: str


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The workers of a model that would not do, and why."""

    workers: tuple[Rejection, ...]
    """The first workers by address."""
    more: int


class Story(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One request, at one router."""

    trace_id: str
    model: str
    tenant: str
    n: int
    priority: int
    prompt_tokens: int
    max_tokens: int
    timeout_seconds: float
    seconds: float
    """How long it took, or is open already."""
    outcome: str
    """How the first sequence ended that did not finish; finished: all did; empty: it is open."""
    sequences: tuple[SequenceStory, ...]
    """Stories of the first sequences."""
    more_sequences: dict[str, int] = {}
    """Numbers of further sequences by outcome, or by stage while the request is open."""
    rejected: Rejected | None = None
    """Where no pair is to be had."""
