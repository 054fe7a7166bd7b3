"""The seam for choosing a worker: without I/O, and told only of workers that may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import random
from typing import NamedTuple, Protocol, TypeVar

from tandem.v1 import router_pb2


class Prompt(NamedTuple):
    """What is known of the request that a worker is chosen for."""

    tokens: int
    """How long its prompt is; where workers are to tokenise it, the most that it can be."""
    tenant: str
    """The name of the client's key; empty: none was asked."""
    blocks: Sequence[int] = ()
    """What stands for its blocks, from its start on: see tandem/prefix_blocks.py. Those of two
    prompts are alike as far as the prompts are. Empty: it has no whole block, or is not known.
    """
    session: int = 0
    """Requests with the same one are likely to go on from each other; 0: nothing is known."""
    request: int = 0
    """The number of its request, where that has several sequences of this prompt; else 0."""

    @classmethod
    def of(
        cls, submit: router_pb2.Submit, task_bytes: int, blocks: Sequence[int], *, request: int
    ) -> Prompt:
        """What a frontend's message says of it. A token is at least a byte, so a text counts as
        its task's bytes.
        """
        tokens = submit.prompt_tokens or task_bytes
        return cls(tokens, submit.tenant, blocks, submit.session, request)


class Candidate(Protocol):
    """A worker with a free slot, to look at."""

    @property
    def key(self) -> str:
        """The worker's address, which is unique."""

    @property
    def cost(self) -> float:
        """The worker's load. Prefill: prompt tokens of open legs for each slot. Decode: the share
        of the slots that is taken, or of the KV cache where that is more.
        """

    @property
    def open_legs(self) -> int:
        """Legs that the worker runs, with those of other routers by its last report."""

    @property
    def free(self) -> int:
        """Legs that it can take now."""

    @property
    def capacity(self) -> int:
        """The worker's slots: legs that it can have at once."""

    @property
    def held(self) -> int:
        """Blocks of prompts that the worker's prefix cache is known to have."""

    def to_compute(self, prompt: Prompt) -> int:
        """Tokens of a prompt that are not in its cache, as far as is known."""


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)
Draw = Callable[[int], int]
"""Gives a number below its argument, each as likely."""


def at_random(below: int) -> int:
    """Draw a number below that one, each as likely."""
    return int(random() * below)


SomeCandidate = TypeVar("SomeCandidate", bound=Candidate, covariant=True)


class Candidates(Protocol[SomeCandidate]):
    """At least one worker, in orders that are kept: to take the first costs the same however many
    there are.
    """

    def __len__(self) -> int:
        """Return how many there are."""

    def __contains__(self, found: object) -> bool:
        """Whether the worker is a candidate."""

    @property
    def shared(self) -> bool:
        """Whether any candidate runs legs of other routers, by the last reports."""

    def by_load(self) -> Iterator[SomeCandidate]:
        """From the smallest cost; of equals by address."""

    def by_address(self, after: str = "") -> Iterator[SomeCandidate]:
        """From the first that comes after that address, and round to it."""

    def holding(self, prompt: Prompt, most: int) -> Sequence[SomeCandidate]:
        """Up to so many that are known to have a beginning of the prompt in their cache, those with
        the longest ones among them.
        """

    def holding_most(self, prompt: Prompt, most: int) -> Sequence[SomeCandidate]:
        """The candidates of `holding` that hold the longest beginning of the prompt."""

    def last_of(self, session: int) -> SomeCandidate | None:
        """The one that the last prompt of a session was sent to, where it is among them."""

    def last_sibling(self, request: int) -> SomeCandidate | None:
        """The one that the last sequence of a request was sent to, where it is among them."""

    def two_at_random(self, draw: Draw) -> tuple[SomeCandidate, SomeCandidate]:
        """Any two of them, each as likely; the same twice where there is but one."""


class Policy(Protocol):
    """One instance serves one choice (say, the prefill workers of one model) and may keep state."""

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        """One of `candidates`. What goes through all of them makes each request cost more the more
        workers there are.
        """


PolicyFactory = Callable[[], Policy]
