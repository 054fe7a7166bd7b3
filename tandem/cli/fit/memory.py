"""Whether a model fits on GPUs, and what then fits beside it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tandem.cli.fit.shape import Shape
from tandem.errors import ConfigError

GPU_GB = {
    "l4": 24,
    "l40s": 48,
    "a100-40gb": 40,
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 180,
}
"""GB (10^9 bytes) of memory, from NVIDIA's data sheets. Drivers report a little more or less."""
GB = 1e9
RESERVED_TOKENS = 512
"""What decode keeps free for running sequences: SGLang's num_reserved_decode_tokens."""
SLIDING_SHARE = 0.8
"""Tokens that layers with a window hold, of those of the others: SGLang's swa_full_tokens_ratio."""
PINNED_SHARE = 0.2
"""Decode's KV cache times this is kept in the host's memory, for what is retracted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The hardware of one worker, and what it is asked to hold."""

    gpu: str
    tensor_parallel: int
    memory_share: float
    """How much of each GPU's memory weights and KV cache may take together."""
    page_size: int
    context: int
    """Tokens of each sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Bytes are of one GPU unless they say otherwise; tokens and sequences are of one worker."""

    gpu_bytes: int
    weight_bytes: int
    kv_bytes: int
    """Left for the KV cache; below zero: the weights do not fit."""
    token_bytes: int
    """KV of a token, in layers that look at everything."""
    sliding_token_bytes: int
    """The same, in layers that look at a window."""
    kv_tokens: int
    pages: int
    prefill_prompts: int
    """Prompts of `context` tokens that prefill holds at once."""
    decode_sequences: int
    """Sequences of `context` tokens that decode holds at once."""
    handover_bytes: int
    """KV of a prompt of `context` tokens, on all GPUs of a worker: what prefill sends."""
    pinned_bytes: int
    """Host memory that decode pins, for all GPUs of a worker."""

    @property
    def fits(self) -> bool:
        return self.decode_sequences > 0


def compute(shape: Shape, worker: WorkerPlan) -> Fit:
    """Raises ConfigError where the model has no such context, or cannot be divided so."""
    ranks = worker.tensor_parallel
    if worker.context > shape.context_length:
        raise ConfigError(f"the model's context has {shape.context_length:,} tokens, not more")
    if not _divides(shape, ranks):
        raise ConfigError(
            f"{ranks} GPUs cannot share {shape.heads} attention heads, {shape.kv_heads} for KV, "
            "equally"
        )
    gpu_bytes = int(GPU_GB[worker.gpu] * GB)
    weights = sum(part.of_rank(ranks) for part in shape.weights)
    left = gpu_bytes * worker.memory_share - weights
    full, sliding = shape.kv.of_rank(ranks), shape.sliding_kv.of_rank(ranks)
    tokens = max(0, int(left / (full + SLIDING_SHARE * sliding)))
    pages = tokens // worker.page_size
    return Fit(
        gpu_bytes=gpu_bytes,
        weight_bytes=int(weights),
        kv_bytes=int(left),
        token_bytes=int(full),
        sliding_token_bytes=int(sliding),
        kv_tokens=pages * worker.page_size,
        pages=pages,
        prefill_prompts=_sequences(shape, worker, pages * worker.page_size),
        decode_sequences=_sequences(shape, worker, pages * worker.page_size - RESERVED_TOKENS),
        handover_bytes=int(
            ranks * (full * worker.context + sliding * min(worker.context, shape.window))
        ),
        pinned_bytes=int(max(0.0, left) * PINNED_SHARE * ranks),
    )


def fewest_gpus(shape: Shape, worker: WorkerPlan) -> int:
    """The least power of two of GPUs, a worker, that holds a sequence; 0: none up to all heads."""
    ranks = 1
    while ranks <= shape.heads:
        tried = dataclasses.replace(worker, tensor_parallel=ranks)
        if _divides(shape, ranks) and compute(shape, tried).fits:
            return ranks
        ranks *= 2
    return 0


def _sequences(shape: Shape, worker: WorkerPlan, tokens: int) -> int:
    """Whole pages, in the pool of layers that look at everything and in that of the others."""
    full = tokens // _in_pages(worker.context, worker.page_size)
    if not shape.window:
        return max(0, full)
    seen = _in_pages(min(worker.context, shape.window), worker.page_size)
    return max(0, min(full, int(tokens * SLIDING_SHARE) // seen))


def _in_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _divides(shape: Shape, ranks: int) -> bool:
    """Ranks take whole heads, of KV several of them may take the same."""
    whole = shape.kv_heads % ranks == 0 or ranks % shape.kv_heads == 0
    return shape.heads % ranks == 0 and whole
