"""Whether a model fits on the GPUs of a worker, and what then fits beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.errors import ConfigError
from tandem_tools.fit import share
from tandem_tools.fit.gpus import Gpu
from tandem_tools.fit.shape import Division, ModelShape, Phase, PipelinePart, Serving

FREE_SHARE = 0.98
"""What of it is free before weights are loaded, of which SGLang takes its share: the driver, CUDA
and NCCL hold the rest. SGLang logs it ("Load weight begin. avail mem"): public logs of GPUs of 80
GB, H200 and B200 say 0.98 to 0.99.
"""
MIB = 2**20
GB = 1e9
RESERVED_TOKENS = 512
"""What decode keeps free for each sequence that runs: SGLang's num_reserved_decode_tokens."""
SLIDING_SHARE = 0.8
"""Tokens that prefill's layers with a window hold, of those of the others: SGLang's
swa_full_tokens_ratio.
"""
_EVICTION_INTERVAL = 128
"""Tokens after which decode frees what has left a window: SGLANG_SWA_EVICTION_INTERVAL."""
_FEW_SEQUENCES = 32
"""Up to so many, SGLang lets twice as many more be on their way to decode."""
PINNED_SHARE = 0.2
"""Decode pins at least this share of its KV cache: SGLang's BACKUP_ONLY_HICACHE_RATIO."""
DISPATCHED_TOKENS, MOST_DISPATCHED_TOKENS = 128, 1024
"""Tokens of a GPU that DeepEP takes in a step of decode: the default and the largest value of
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.
"""
_BEYOND_CONTEXT = 3
"""Tokens more than the model's context for which SGLang makes room in a sequence."""


_PLAIN = Serving()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The hardware of a worker of one phase, and what it is asked to hold."""

    phase: Phase
    gpu: Gpu
    division: Division
    memory_share: float = 0.0
    """How much of each GPU's free memory weights and KV cache may take together; 0: what SGLang
    chooses."""
    page_size: int
    context: int
    """Tokens of each sequence."""
    max_sequences: int
    """Sequences that a decode worker may have, in all groups."""
    serving: Serving = _PLAIN
    batched_tokens: int = 0
    """vLLM: tokens that one step computes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What fits on a worker. Bytes are of one GPU unless a field says otherwise, and of the fullest
    stage of a pipeline; tokens and sequences are of one worker.
    """

    gpu_bytes: int
    memory_share: float
    """How much of what is free of them weights and KV cache may take together."""
    weight_bytes: int
    kv_bytes: int
    """Left for the KV cache; below zero: the weights do not fit."""
    token_bytes: int
    """KV of a token, in layers that look at everything."""
    sliding_token_bytes: int
    """Bytes of a token in layers that look at a window."""
    kv_tokens: int
    pages: int
    sequences: int
    """Prompts of `context` tokens that prefill holds at once, or such sequences that decode does.
    """
    handover_bytes: int
    """KV of a prompt of `context` tokens, on all GPUs of the worker that hold it."""
    pinned_bytes: int
    """Host memory that decode pins for what it retracts, for all GPUs of a worker."""

    @property
    def fits(self) -> bool:
        return self.sequences > 0


@dataclass(frozen=True, slots=True)
class _Pools:
    """Tokens that a GPU's KV cache holds, in whole pages."""

    full: int
    """Tokens in layers that look at everything."""
    sliding: int
    """Tokens in layers that look at a window."""


def compute(shape: ModelShape, worker: WorkerPlan) -> Fit:
    """Raises ConfigError where the model has no such context, or cannot be divided so."""
    check_context(shape, worker)
    if wrong := _indivisible(shape, worker.division) or _unspreadable(shape, worker):
        raise ConfigError(wrong)
    division, groups = worker.division, worker.division.groups
    parts = shape.parts(division)
    gpu_bytes = worker.gpu.mib * MIB
    taken = worker.memory_share or _sglang_share(worker)
    # SGLang takes what is left on the fullest of all GPUs, and the fewest tokens that it is for.
    weights = max(part.weights for part in parts)
    left = gpu_bytes * FREE_SHARE * taken - weights
    pools = _pools(shape, worker, parts, left)
    fullest = max(parts, key=lambda part: (part.kv, part.sliding_kv))
    sent = sum(
        part.kv * worker.context + part.sliding_kv * min(worker.context, shape.window)
        for part in parts
    )
    return Fit(
        gpu_bytes=gpu_bytes,
        memory_share=taken,
        weight_bytes=int(weights),
        kv_bytes=int(left),
        token_bytes=int(fullest.kv),
        sliding_token_bytes=int(fullest.sliding_kv),
        kv_tokens=pools.full * groups,
        pages=pools.full // worker.page_size * groups,
        sequences=_sequences(shape, worker, pools) * groups,
        handover_bytes=int(division.attention * sent),
        pinned_bytes=int(_pinned_share(shape, worker, pools) * _cache(parts, pools))
        * division.tensor,
    )


def check_context(shape: ModelShape, worker: WorkerPlan) -> None:
    """Raises ConfigError where the model has no such context."""
    if worker.context > shape.context_length:
        raise ConfigError(
            f"the model's context has {shape.context_length:,} tokens, fewer than --context"
            f" {worker.context}"
        )


def fewest_gpus(shape: ModelShape, worker: WorkerPlan) -> int:
    """The least power of two of GPUs that share a layer, times the parts of a pipeline, that holds
    a sequence; 0: none up to all heads.
    """
    ranks = 1
    while ranks <= shape.heads * worker.division.groups:
        division = dataclasses.replace(worker.division, tensor=ranks)
        tried = dataclasses.replace(worker, division=division)
        wrong = _indivisible(shape, division) or _unspreadable(shape, tried)
        if not wrong and compute(shape, tried).fits:
            return division.gpus
        ranks *= 2
    return 0


def _sglang_share(worker: WorkerPlan) -> float:
    return share.of_sglang(
        worker.phase,
        worker.gpu.mib,
        worker.division,
        sequences=worker.max_sequences,
        deepep=worker.serving.moe_a2a_backend == "deepep",
    )


def _pools(
    shape: ModelShape, worker: WorkerPlan, parts: Sequence[PipelinePart], left: float
) -> _Pools:
    """What `left` bytes of each GPU hold. Of layers with a window decode holds what its sequences
    can need (SGLang's `SWAChunkCapPoolConfigurator`), prefill a share of what others hold.
    """
    if worker.phase == "prefill":
        full = min(left / (part.kv + SLIDING_SHARE * part.sliding_kv) for part in parts)
        tokens = _whole_pages(full, worker.page_size)
        return _Pools(tokens, _whole_pages(tokens * SLIDING_SHARE, worker.page_size))
    sliding = _in_pages(_sliding_need(shape, worker), worker.page_size)
    full = min((left - part.sliding_kv * sliding) / part.kv for part in parts if part.kv)
    return _Pools(_whole_pages(full, worker.page_size), sliding)


def _sliding_need(shape: ModelShape, worker: WorkerPlan) -> int:
    """Tokens that the windows of all sequences of a group can need: `compute_swa_request_cap`."""
    if not shape.window:
        return 0
    sequences = worker.max_sequences // worker.division.groups
    on_their_way = 2 * sequences if sequences <= _FEW_SEQUENCES else 0
    running = shape.window + _EVICTION_INTERVAL + 2 * worker.page_size
    return sequences * running + on_their_way * (shape.window + worker.page_size)


def _sequences(shape: ModelShape, worker: WorkerPlan, pools: _Pools) -> int:
    """Sequences of a group, in whole pages, in the pool of either kind of layers."""
    kept_free = RESERVED_TOKENS if worker.phase == "decode" else 0
    full = pools.full // (_in_pages(worker.context, worker.page_size) + kept_free)
    if not shape.window:
        return full
    seen = _in_pages(min(worker.context, shape.window), worker.page_size)
    return min(full, pools.sliding // seen)


def _pinned_share(shape: ModelShape, worker: WorkerPlan, pools: _Pools) -> float:
    """Decode's, of its KV cache: a fifth, or what a sequence of the model's whole context takes
    where that is more (`resolve_decode_retraction_backup`). SGLang pins no latents.
    """
    if worker.phase == "prefill" or shape.latent or not pools.full:
        return 0
    longest = min(shape.context_length + _BEYOND_CONTEXT, pools.full)
    return max(PINNED_SHARE, _in_pages(longest, worker.page_size) / pools.full)


def _cache(parts: Sequence[PipelinePart], pools: _Pools) -> float:
    """Bytes of the KV cache of a GPU of each part together."""
    return sum(part.kv * pools.full + part.sliding_kv * pools.sliding for part in parts)


def _in_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _whole_pages(tokens: float, page_size: int) -> int:
    return max(0, int(tokens)) // page_size * page_size


def _indivisible(shape: ModelShape, division: Division) -> str:
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


def _unspreadable(shape: ModelShape, worker: WorkerPlan) -> str:
    """Why GPUs cannot each hold as many experts as the others, or have the matrix of logits whole
    in each group; empty: they can.
    """
    serving, ranks = worker.serving, worker.division.tensor
    copies = serving.ep_num_redundant_experts
    if copies and serving.moe_a2a_backend == "none":
        return "redundant experts need a --moe-a2a-backend, by which tokens come to them"
    if serving.moe_a2a_backend != "none" and (shape.experts + copies) % ranks:
        return f"{ranks} GPUs cannot share {shape.experts} experts and {copies} copies equally"
    if serving.enable_dp_lm_head and worker.division.groups == 1:
        return "--enable-dp-lm-head needs groups of GPUs (--dp)"
    return ""
