"""What SGLang's scheduler process needs from Tandem. It travels as a pickle of plain values."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.engine.kv_tag import KvCheck


def shared_numbers(count: int) -> Any:
    """`count` numbers, each 0, in memory that a worker's process and its engine's share."""
    return multiprocessing.get_context("spawn").RawArray("q", count)


@dataclass(frozen=True, slots=True)
class TokenAddresses:
    """Where a process of the worker has requests, as ZeroMQ writes addresses."""

    requests: str
    outputs: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Additions:
    """Made by the worker's process, read by the scheduler's."""

    seeded: bool
    speculative: bool
    on_cpu: bool
    ranks: int
    """Ranks among which a sequence's KV is divided here, on all nodes."""
    stages: int
    """Pipeline stages: parts of the model with some layers each."""
    peer_ranks: int
    """The ranks of the other phase."""
    registry: Mapping[str, Any]
    """`Registry.portable`."""
    model: Mapping[str, Any]
    """Arguments of tandem.logits.model.Model."""
    transfer_backend: str
    """What hands KV over, by SGLang's name."""
    kv_check: KvCheck
    revision: str
    """The model's, by its files."""
    handover_timeout_seconds: int
    """For hand-overs after the first that succeeds."""
    grammar_cache_bytes: int
    """Most that the scheduler may keep of compiled grammars."""
    further: Sequence[TokenAddresses] = ()
    """Where the worker's processes from the second have requests, and await what comes of them."""
    left_out: frozenset[str] = frozenset()
    """The names of units that are not put in."""
    errors: socket.socket | None = None
    """`LastWords.outbox`; None: what it prints goes where its parent's does."""
    states: Any = field(default_factory=lambda: shared_numbers(1))
    """How many sequences have logits processors now, by data-parallel rank: `shared_numbers`. All
    ranks that share a sequence write the same."""

    @property
    def device(self) -> str:
        """Where the engine runs, by torch's name."""
        return "cpu" if self.on_cpu else "cuda"
