"""A connected worker, as the core knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem_router.core.prefixes import Holdings, depth_in
from tandem_router.core.trust import Trust
from tandem_router.core.values import Phase, Profile, Standing
from tandem_router.policies.base import Prompt

if TYPE_CHECKING:
    from tandem_router.core.free import Index
    from tandem_router.core.group import Side

_SLOT_TOKENS = 128
"""What a sequence that is decoded on an aggregated worker counts for there, in tokens of prompts
that wait: about as much as it has yet to make.
"""
_PREFILL, _PROBATION = Phase.PREFILL, Standing.PROBATION


@dataclass(slots=True, eq=False)
class Worker:
    """A connected worker. A reconnected one is another Worker."""

    key: str
    listed_as: Phase
    profile: Profile
    draining: bool
    legs: set[int] = field(default_factory=set)
    """Numbers of its open legs; a slot is free again only when its leg has closed."""
    overdue: int = 0
    """Legs that the worker has not closed in time after a cancel; each keeps its slot."""
    other_legs: int = 0
    """Legs of other routers, by its last report; a start that is on its way may hide one."""
    tokens: int = 0
    """Tokens of open legs: of prefill those that are to be computed, of decode the prompts'."""
    holdings: Holdings = field(default_factory=Holdings)
    """What its prefix cache holds; the Fleet's `prefixes` keeps it."""
    other_tokens: int = 0
    """Further tokens of the worker's last report: of other routers, and what decode generated."""
    kv_tokens_used: int = 0
    kv_tokens_total: int = 0
    """How many its KV cache holds, and can hold; 0: it does not say."""
    paired: bool = False
    """The worker has been told that a pair uses it."""
    died: bool = False
    """Whether the engine has died. Legs that are still sent do not begin."""
    trust: Trust = field(default_factory=Trust)
    """How far it is trusted; the Fleet's, so that it outlives the stream."""
    twin: Worker | None = None
    """The other phase of an aggregated worker, while it is connected. The Fleet sets it."""
    cost: float = field(default=0.0, init=False)
    """`load` when the worker was last put into its index; equal to `load` while the index has the
    worker.
    """
    side: Side | None = None
    """Where it takes work; None: it takes none, or is gone. The Fleet's `update` says which."""
    index: Index | None = None
    """Where it is found; None: it takes no work, or has no free slot. The index sets it."""
    phase: Phase = field(init=False)
    """As its profile says, like the next two."""
    capacity: int = field(init=False)
    aggregated: bool = field(init=False)
    """Whether the engine serves the other phase too, as the twin; neither pairs with another."""

    def __post_init__(self) -> None:
        profile = self.profile
        self.phase, self.capacity = profile.phase, profile.max_sequences
        self.aggregated = profile.fingerprint.aggregated

    @property
    def open_legs(self) -> int:
        """Open legs, those of other routers included."""
        return len(self.legs) + self.other_legs

    @property
    def free(self) -> int:
        """Legs that the worker, and its twin if it is aggregated, can take now."""
        own = self.trust.slots(self.capacity - len(self.legs) - self.other_legs)
        if not self.aggregated:
            return own
        twin = self.twin
        if twin is None or twin.side is None:
            return 0
        return min(own, twin.trust.slots(twin.capacity - len(twin.legs) - twin.other_legs))

    @property
    def has_overdue(self) -> bool:
        """The worker or its twin has legs that were not closed in time."""
        return self.overdue > 0 or (self.twin is not None and self.twin.overdue > 0)

    @property
    def held(self) -> int:
        """Blocks of prompts that the worker's prefix cache is known to have."""
        return len(self.holdings.blocks)

    def to_compute(self, prompt: Prompt) -> int:
        """Tokens of a prompt that its prefix cache does not have, as far as is known: at least the
        last one, as the first answer follows from it.
        """
        blocks, held = prompt.blocks, self.holdings.blocks
        # Asked of each worker that is looked at: most hold all that anybody does, or nothing.
        if not blocks or blocks[0] not in held:
            return prompt.tokens
        cached = len(blocks) if blocks[-1] in held else depth_in(blocks, held)
        left = prompt.tokens - cached * BLOCK_TOKENS
        return left if left > 0 else 1

    def load(self) -> float:
        """What is compared among workers of its phase. Prefill computes one prompt after the other,
        so what counts is how many tokens wait for each slot; decode runs all at once, so it is full
        when its slots are, or its KV cache: the larger share counts. An aggregated worker does
        both, so for either phase its loads are added, and each slot that is taken counts as so many
        tokens of prompts that wait.
        """
        twin, is_prefill = self.twin, self.phase is _PREFILL
        if twin is None:
            return (self.tokens + self.other_tokens) / self.capacity if is_prefill else self._taken
        prefill, decode = (self, twin) if is_prefill else (twin, self)
        tokens = prefill.tokens + prefill.other_tokens
        return tokens / prefill.capacity + _SLOT_TOKENS * decode._taken

    @property
    def waiting_tokens(self) -> int:
        """Prefill: tokens that the worker has to compute for all its open legs."""
        return self.tokens + self.other_tokens

    @property
    def _taken(self) -> float:
        """Decode: the larger of the taken shares of slots and of KV cache."""
        taken = (len(self.legs) + self.other_legs) / self.capacity
        if not self.kv_tokens_total:
            return taken
        return max(taken, (self.tokens + self.other_tokens) / self.kv_tokens_total)

    @property
    def used_as(self) -> Standing | None:
        """All that picking asks: WHOLE takes as many legs as it has slots for, PROBATION one at a
        time, EJECTED none; None: it takes none whatever its reputation.
        """
        proving = self.trust.standing is Standing.PROVING
        return None if proving or not self.fit else self.trust.reputation

    @property
    def fit(self) -> bool:
        """Whether the worker could take new work, if it were trusted."""
        trust = self.trust
        return not (self.draining or trust.stalled or trust.given_up or self.defect())

    def report(
        self, open_legs: int, prompt_tokens: int | None, kv_tokens_used: int, kv_tokens_total: int
    ) -> None:
        """Take in what it says that it has: what is not this router's is the others'. Where prefill
        does not say how many tokens that is, each of their legs counts as one.
        """
        self.other_legs = max(0, open_legs - len(self.legs))
        self.kv_tokens_used = kv_tokens_used
        self.kv_tokens_total = kv_tokens_total
        tokens = prompt_tokens if self.phase is _PREFILL else kv_tokens_used
        self.other_tokens = self.other_legs if tokens is None else max(0, tokens - self.tokens)

    def take(self, leg: int, tokens: int) -> None:
        """A leg that takes so many tokens is started on it; on probation it is a probe."""
        self.legs.add(leg)
        self.tokens += tokens
        if self.trust.reputation is _PROBATION:
            self.trust.probe = leg

    def give_back(self, leg: int, tokens: int) -> None:
        """A leg that was started on it is closed."""
        self.legs.remove(leg)
        self.tokens -= tokens

    def fill(self) -> None:
        """The worker says that it is full: other routers have the rest, until its next report."""
        self.other_legs = max(self.other_legs, self.capacity - len(self.legs))

    def withheld(self) -> str:
        """Why it is given nothing new at present, for people; empty: it is."""
        trust = self.trust
        if self.draining:
            return "it is draining"
        if trust.stalled:
            return "its engine has work and makes no step"
        if trust.given_up:
            return "its stream is about to be closed"
        if trust.reputation is Standing.EJECTED:
            return f"it is ejected: {trust.failed} of the last {trust.ended} legs failed there"
        return ""

    def defect(self) -> str:
        """Why no pair can ever use it ("phase" or "limits"); empty: a pair can."""
        if self.phase is not self.listed_as:
            return "phase"
        return "" if self.capacity > 0 else "limits"


def defect_text(worker: Worker, defect: str) -> str:
    """What `Worker.defect` says, for people."""
    if defect == "phase":
        return f"it is a {worker.phase} worker, listed as {worker.listed_as}"
    return "it takes no sequences: max_sequences is 0"


def difference_text(worker: Worker, other: Worker, name: str) -> str:
    """In what field two workers differ, for people. What they say there is cut where it is long."""
    mine = getattr(worker.profile.fingerprint, name)
    theirs = getattr(other.profile.fingerprint, name)
    return f"{name} is {mine!r:.100}, but {theirs!r:.100} on {other.phase} worker {other.key}"
