"""Whether a model fits on GPUs, and what then fits beside it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tandem.cli.fit.shape import Division, PipelinePart, Shape
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
    data_parallel: int = 1
    """Groups of these GPUs, each with the attention of its own sequences."""
    pipeline_parallel: int = 1
    """So many times these GPUs, each with some of the layers."""
    memory_share: float
    """How much of each GPU's memory weights and KV cache may take together."""
    page_size: int
    context: int
    """Tokens of each sequence."""

    @property
    def division(self) -> Division:
        return Division(self.tensor_parallel, self.data_parallel, self.pipeline_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Bytes are of one GPU unless they say otherwise, where parts of a pipeline differ of the one
    that has most of them; tokens and sequences are of one worker.
    """

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
    """KV of a prompt of `context` tokens, on all GPUs that hold it: what prefill sends."""
    pinned_bytes: int
    """Host memory that decode pins, for all GPUs of a worker."""

    @property
    def fits(self) -> bool:
        return self.decode_sequences > 0


def compute(shape: Shape, worker: WorkerPlan) -> Fit:
    """Raises ConfigError where the model has no such context, or cannot be divided so."""
    if worker.context > shape.context_length:
        raise ConfigError(f"the model's context has {shape.context_length:,} tokens, not more")
    if wrong := _indivisible(shape, worker.division):
        raise ConfigError(wrong)
    division, groups = worker.division, worker.data_parallel
    parts = shape.parts(division)
    gpu_bytes = int(GPU_GB[worker.gpu] * GB)
    # SGLang takes what is left on the fullest of all GPUs, and the fewest tokens that it is for.
    weights = max(part.weights for part in parts)
    left = gpu_bytes * worker.memory_share - weights
    fullest = max(parts, key=_pool)
    exactly = left / _pool(fullest)
    pages = max(0, int(exactly)) // worker.page_size
    tokens = pages * worker.page_size
    sent = sum(
        part.kv * worker.context + part.sliding_kv * min(worker.context, shape.window)
        for part in parts
    )
    return Fit(
        gpu_bytes=gpu_bytes,
        weight_bytes=int(weights),
        kv_bytes=int(left),
        token_bytes=int(fullest.kv),
        sliding_token_bytes=int(fullest.sliding_kv),
        kv_tokens=tokens * groups,
        pages=pages * groups,
        prefill_prompts=_sequences(shape, worker, tokens) * groups,
        decode_sequences=_sequences(shape, worker, tokens - RESERVED_TOKENS) * groups,
        handover_bytes=int(division.attention * sent),
        pinned_bytes=int(
            max(0.0, exactly) * sum(map(_pool, parts)) * PINNED_SHARE * division.tensor
        ),
    )


def fewest_gpus(shape: Shape, worker: WorkerPlan) -> int:
    """The least power of two of GPUs that share a layer, times the parts of a pipeline, that holds
    a sequence; 0: none up to all heads.
    """
    ranks = 1
    while ranks <= shape.heads * worker.data_parallel:
        tried = dataclasses.replace(worker, tensor_parallel=ranks)
        if not _indivisible(shape, tried.division) and compute(shape, tried).fits:
            return tried.division.gpus
        ranks *= 2
    return 0


def _pool(part: PipelinePart) -> float:
    """Bytes that a GPU keeps for each token that it is to hold."""
    return part.kv + SLIDING_SHARE * part.sliding_kv


def _sequences(shape: Shape, worker: WorkerPlan, tokens: int) -> int:
    """Whole pages, in the pool of layers that look at everything and in that of the others."""
    full = tokens // _in_pages(worker.context, worker.page_size)
    if not shape.window:
        return max(0, full)
    seen = _in_pages(min(worker.context, shape.window), worker.page_size)
    return max(0, min(full, int(tokens * SLIDING_SHARE) // seen))


def _in_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _indivisible(shape: Shape, division: Division) -> str:
    """Why GPUs cannot share a model so; empty: they can. Ranks take whole heads, of KV several of
    them may take the same.
    """
    if division.parts > len(shape.layers):
        return f"{division.parts} parts cannot share {len(shape.layers)} layers"
    if division.groups > 1 and not shape.grouped:
        return "SGLang does not divide this model's attention among data-parallel groups"
    if division.tensor % division.groups:
        return f"{division.groups} groups cannot share {division.tensor} GPUs equally"
    ranks = division.attention
    whole = shape.kv_heads % ranks == 0 or ranks % shape.kv_heads == 0
    if shape.heads % ranks or not whole:
        return (
            f"{ranks} GPUs cannot share {shape.heads} attention heads, {shape.kv_heads} for KV, "
            "equally"
        )
    return ""
