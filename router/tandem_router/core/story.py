"""What is told of a request, open or ended: plain values, which are JSON as they are.

Names of models, workers and tenants, numbers and codes; never what a prompt or an output says, nor
a message of anybody's code. Times are seconds since the request came.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tandem.timeline import NOTHING, LegTimes

MAX_NAME_CHARACTERS = 200
"""What a worker calls itself is cut to this."""
_LOGGED, _LOGGED_MOMENTS = 4, 24
MomentName = Literal[
    "queued", "pair_chosen", "started", "verdict", "closed", "retry", "regenerate", "resume"
]


class LongerHolder(msgspec.Struct, frozen=True, gc=False):
    """A worker that had more of a prompt in its cache than the chosen one."""

    worker: str
    name: str
    tokens: int
    """Tokens of the prompt that it had, as far as the router knew."""
    reason: str
    """Why it was not chosen, for people."""
    seconds: float
    """Predicted there until the first token; 0: nothing was measured yet."""


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """Prompts that a prefill worker had to compute before."""

    tokens: int
    prompts: int
    """How many prompts this router had sent to the worker before."""
    largest: int
    """Tokens of the largest prompt among the prompts ahead."""
    trace_id: str
    """The request that the largest belongs to."""


class Holders(msgspec.Struct, frozen=True, gc=False):
    """Who had the slots for which a sequence waited."""

    tenants: dict[str, int]
    """Sequences that ran, by key."""
    trace_id: str
    """The request among them that had run for longest; empty: other routers had them all."""
    seconds: float
    """For how long."""


class Alternative(msgspec.Struct, frozen=True, gc=False):
    """A worker that could have been chosen."""

    worker: str
    """The worker's address."""
    cost: float
    """The worker's load, which least_loaded compares."""


class ChosenWorker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A worker that a policy chose, and the other candidates."""

    worker: str
    name: str
    """As the worker calls itself."""
    cost: float
    candidates: int
    """How many there were, itself included."""
    others: tuple[Alternative, ...]
    """Candidates with the smallest cost, the chosen one left out."""
    cached: int = 0
    """Prefill: tokens of the prompt that its cache had, as far as the router knew."""
    elsewhere: LongerHolder | None = None
    """Prefill: who had more of them."""


class WayTaken(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which way a sequence went, and why: see ways.py."""

    name: str
    """pair or aggregated: a values.Way."""
    reason: str
    """A values.Reason."""
    pair_seconds: float = 0.0
    """Predicted for either way, where they were compared."""
    aggregated_seconds: float = 0.0


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Why no pair takes a worker. A worker has one for each reason."""

    worker: str
    phase: str
    reason: str


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Workers of a model that would not do, and why."""

    workers: tuple[Rejection, ...]
    """The first workers by address."""
    more: int


class Moment(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What happened to a sequence."""

    at: float
    name: MomentName
    phase: str = ""
    """started, verdict, closed: of which leg."""
    code: str = ""
    """verdict: terminate, or empty. closed: its outcome, or an error's code. retry, resume: why."""
    prefill: ChosenWorker | None = None
    """pair_chosen: absent for a phase that does not run."""
    decode: ChosenWorker | None = None
    way: WayTaken | None = None
    """pair_chosen: absent where one phase runs alone."""
    cause: str = ""
    """queued: why the sequence did not start at once, for people; empty: it did."""
    holders: Holders | None = None
    """queued: who had the slots, where none was free."""
    workers: Rejected | None = None
    """queued: workers that would not do, as they were within the second."""
    ahead: Ahead | None = None
    """pair_chosen: what the prefill worker had to compute before; None: nothing."""
    times: LegTimes | None = None
    """closed: where the leg's time went."""
    usual: float = NOTHING
    """closed: what computing, or generating, so many tokens had taken of late; 0: not known."""


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

    @property
    def delay(self) -> float:
        """Seconds that the slowest sequence waited, and that its tokens took longer than usual."""
        return max((_delay(each) for each in self.sequences), default=0.0)


def shortened(story: Story) -> Story:
    """What a line of the log holds of a story: the last moments of the first sequences."""
    if len(story.sequences) <= _LOGGED and all(
        len(each.moments) <= _LOGGED_MOMENTS for each in story.sequences
    ):
        return story
    first = [
        msgspec.structs.replace(each, moments=each.moments[-_LOGGED_MOMENTS:])
        for each in story.sequences[:_LOGGED]
    ]
    return msgspec.structs.replace(story, sequences=tuple(first))


def _delay(sequence: SequenceStory) -> float:
    """All of the sequence's time but what decode usually takes for so many tokens."""
    for moment in reversed(sequence.moments):
        if moment.times is not None and moment.phase == "decode":
            generating = moment.times.generating
            usual = min(moment.usual, generating) if moment.usual else generating
            return max(0.0, sequence.seconds - usual)
    return sequence.seconds
