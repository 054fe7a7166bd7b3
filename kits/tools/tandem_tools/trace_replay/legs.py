"""A request on its way through a fleet, and its legs on workers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tandem.prefix_blocks import BLOCK_TOKENS, Blocks
from tandem_tools import trace
from tandem_tools.trace import TracedRequest

if TYPE_CHECKING:
    from tandem_tools.trace_replay.router import Router
    from tandem_tools.trace_replay.workers import ReplayedWorker

_PARTS = trace.BLOCK_TOKENS // BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class ReplayedRequest:
    """One of the trace. Times are seconds since the replay began."""

    line: TracedRequest
    came: float
    blocks: Blocks = ()
    """The numbers of its prompt's blocks, while it is open."""
    first: float | None = None
    """When its first token reached the client; None: not yet."""
    ended: float | None = None
    failure: str = ""
    """Once it has ended: the error's code, or empty."""
    cached_tokens: int = 0
    """Prompt tokens that the last prefill worker had cached."""
    router: int = 0
    """The number of the request's router."""
    tried: int = 0
    """How many have had it."""

    @property
    def prompt_tokens(self) -> int:
        return self.line.input_length

    @property
    def later_tokens(self) -> int:
        """Output tokens behind the first one."""
        return self.line.output_length - 1

    @property
    def kv_tokens(self) -> int:
        """What it needs in the KV cache that it ends in."""
        return self.line.input_length + self.line.output_length

    def match(self, blocks: int) -> int:
        """Take in that its worker has so many blocks of its prompt, and return the tokens that are
        left to compute: one at least, whose output is the first token.
        """
        self.cached_tokens = min(blocks * BLOCK_TOKENS, self.prompt_tokens - 1)
        return self.prompt_tokens - self.cached_tokens


def blocks_of(line: TracedRequest) -> Blocks:
    """The numbers of a prompt's whole blocks, as routers count them: those of a trace are larger.
    A prompt without numbers has nothing in common with others.
    """
    numbers = (each * _PARTS + part for each in line.hash_ids for part in range(_PARTS))
    return tuple(islice(numbers, line.input_length // BLOCK_TOKENS))


@dataclass(slots=True, eq=False)
class HandOver:
    """The two legs of one attempt. `go_on` is called once both workers are ready for what they do
    together: that is when prefill has the KV and decode has room for it, where these are two.
    """

    prefill: ReplayedLeg | None = None
    decode: ReplayedLeg | None = None
    _ready: int = 0

    def ready(self) -> None:
        """Note that prefill or decode is ready."""
        self._ready += 1
        if self._ready == 2:
            assert self.prefill is not None
            self.prefill.worker.go_on(self)

    def done(self) -> None:
        """The KV is where decode goes on from."""
        for leg in (self.prefill, self.decode):
            if leg is not None and leg.open:
                leg.worker.moved(leg)


@dataclass(slots=True, eq=False)
class ReplayedLeg:
    """A run of a request on one worker."""

    number: int
    """The router's own number."""
    sequence: int
    """The number of the sequence, its request's own."""
    request: ReplayedRequest
    worker: ReplayedWorker
    router: Router
    """The router that started the leg, to whom the worker says what becomes of the leg."""
    to_compute: int
    """Prompt tokens that the router expects its worker to compute."""
    new_blocks: Blocks
    """Blocks of the prompt that the router does not expect at the worker."""
    hand_over: HandOver
    open: bool = True
    """The worker has not closed the leg."""
