"""Runs in vLLM's engine process: the class through which the V1 model runner applies logits
processors. vLLM loads it by name, and makes one instance of it, before the first step.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

from tandem_vllm.requests import STEERING
from tandem_vllm.rows import Rows


class TandemLogitsProcessor(LogitsProcessor):
    """What `logits_processors` names."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows = Rows.configured(vllm_config.additional_config[STEERING])

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """In vLLM's order: what left, what came, what has another place."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._rows.leave(place)
        for place, params, prompt, outputs in batch_update.added:
            given = (params.extra_args or {}).get(STEERING)
            self._rows.take(place, given, prompt or (), outputs)
        for source, target, how in batch_update.moved:
            self._rows.move(source, target, swap=how is MoveDirectionality.SWAP)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self._rows.edit(logits)
        return logits
