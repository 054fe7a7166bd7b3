"""One request inside the sim engine."""

from __future__ import annotations

import asyncio
import enum
import sys
from dataclasses import dataclass, field

from tandem.engine.base import EngineRequest, Logprobs, PromptLogprobs
from tandem.engine.kv_tag import KvTag
from tandem.errors import TandemError
from tandem.prefix_blocks import Blocks
from tandem.v1 import common_pb2
from tandem_sim.faults import Fault
from tandem_sim.sampling import RowSampler

NEVER = sys.maxsize


class SequenceStage(enum.Enum):
    QUEUED = "queued"
    """Waits for room in the KV pool and in the batch."""
    PREFILL = "prefill"
    TRANSFER = "transfer"
    """The sequence's KV is being handed over, or waited for."""
    DECODE = "decode"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True, eq=False)
class SimSequence:
    """Mutable; owned by the engine alone."""

    request: EngineRequest
    prompt_pages: int
    """Pages of the prompt's KV: the first of `pages`."""
    total_pages: int
    """Pages for prompt and completion, all reserved at once."""
    limit: int
    """Tokens after which it ends with LENGTH."""
    stops: frozenset[int]
    """Tokens that end it with STOP."""
    sampler: RowSampler | None
    faults: frozenset[Fault]
    id: int = 0
    stage: SequenceStage = SequenceStage.QUEUED
    pages: list[int] = field(default_factory=list)
    state: int = 0
    position: int = 0
    """Tokens generated so far."""
    natural_end: int = NEVER
    """From this position on the model wants to end it."""
    first_token: int = 0
    first_logprobs: Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    blocks: Blocks = ()
    """What stands for its prompt in the prefix cache, once it was looked for there."""
    cached_tokens: int = 0
    """Prompt tokens that prefill's prefix cache had."""
    generation: int = 0
    """KvPool's, of the prompt's pages since they are its own."""
    tag: KvTag | None = None
    """PREFILL: what goes with the prompt's KV."""
    given_up: TandemError | None = None
    """Why it ends, while a transfer must settle first."""
    times: common_pb2.EngineTimes = field(default_factory=common_pb2.EngineTimes)
    """What came before the first token."""
    since: float = 0.0
    """When it began to wait for what it waits for."""
    deadline: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None
    """Ends the wait for the other phase, or a fault's delay."""

    def stop_timers(self) -> None:
        for timer in (self.deadline, self.patience):
            if timer is not None:
                timer.cancel()
        self.deadline = self.patience = None
