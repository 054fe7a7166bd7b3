"""A request that is open, and where it stands."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.engine.base import Delta, EngineRequest
from tandem.logits.spec import LogitsProcessorEntry
from tandem_vllm import requests
from tandem_vllm.pull_client import Readable


class Stage(enum.Enum):
    CALLING = enum.auto()
    """DECODE: prefill has not said that the KV is ready."""
    COMPUTED = enum.auto()
    """vLLM has the request."""
    HELD = enum.auto()
    """PREFILL: the KV waits for decode, or decode reads it."""
    ENDING = enum.auto()
    """vLLM is told to drop the request."""


@dataclass(slots=True, eq=False)
class Leg:
    request: EngineRequest
    spec: Sequence[LogitsProcessorEntry]
    stage: Stage
    generated: int = 0
    readable: Readable | None = None
    """DECODE, while no token has come: what is being read."""
    ordered: float = 0.0
    """By time.monotonic(), when vLLM was given the request."""
    told: Delta | None = None
    """PREFILL: what is to be said once the hand-over has settled."""

    @property
    def name(self) -> str:
        return requests.name(self.request.request_id)

    def pages(self, size: int) -> int:
        """Pages of so many tokens that its KV takes."""
        tokens = len(self.request.token_ids) + len(self.request.made) + self.generated
        return -(-tokens // size)
