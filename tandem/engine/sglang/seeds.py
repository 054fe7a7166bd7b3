"""Runs in SGLang's scheduler process: lets a request's seed decide its tokens.

SGLang heeds seeds only in its deterministic mode, which brings batch-invariant GPU kernels along.
Its sampler needs nothing but the seeds, one for each row of a batch, and draws from a hash of the
seed, the position and the token: so the two phases draw as one engine would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers import sampler
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

_WORD = 0xFFFFFFFF


def seed_every_row(*, on_cpu: bool) -> None:
    """Seed the batches of this process."""
    original = SamplingBatchInfo.from_schedule_batch

    def from_schedule_batch(batch: Any, vocab_size: int) -> Any:
        info = original(batch, vocab_size)
        if info.sampling_seed is None:
            seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
            info.sampling_seed = torch.tensor(seeds, dtype=torch.int64).to(
                batch.device, non_blocking=True
            )
        return info

    SamplingBatchInfo.from_schedule_batch = staticmethod(from_schedule_batch)
    sampler.top_k_top_p_min_p_sampling_from_probs_torch = functools.partial(
        _sample_filtered, sampler.top_k_top_p_min_p_sampling_from_probs_torch
    )
    if on_cpu:
        sampler.multinomial_with_seed = multinomial_with_seed


def _sample_filtered(
    original: Callable[..., Any],
    probs: Any,
    top_ks: Any,
    top_ps: Any,
    min_ps: Any,
    need_min_p: bool,
    seeds: Any,
    positions: Any,
    **kwargs: Any,
) -> Any:
    """SGLang asserts that seeded rows have no min_p, which would kill the scheduler.

    What min_p forbids is the tail of the sorted probabilities, so forbidding it first leaves top_k
    and top_p as they were.
    """
    if need_min_p and seeds is not None:
        least = probs.max(dim=-1, keepdim=True).values * min_ps.view(-1, 1)
        probs, need_min_p = probs.masked_fill(probs < least, 0.0), False
    return original(probs, top_ks, top_ps, min_ps, need_min_p, seeds, positions, **kwargs)


def multinomial_with_seed(logprobs: Any, seeds: Any, positions: Any) -> Any:
    """A column, (rows, 1), for each row of `logprobs`, (rows, columns), drawn with Gumbel noise.

    SGLang's own is compiled at its first use and hashes with a kernel that only the GPU
    distribution has.
    """
    columns = torch.arange(logprobs.shape[1], device=logprobs.device)
    uniform = murmur_hash32(seeds, positions, columns).to(torch.float64) / _WORD
    spread = uniform.clamp(min=2.0**-33, max=1 - 2.0**-33)  # both ends would be infinite
    noise = -torch.log(-torch.log(spread))
    return torch.argmax(noise + logprobs.to(torch.float64), dim=1, keepdim=True)


def murmur_hash32(seeds: Any, positions: Any, columns: Any) -> Any:
    """MurmurHash3 of (seed, position, column), (rows, columns) int64 below 2**32.

    The same numbers as SGLang's Triton kernel. Source: sglang/kernels/ops/sampling/murmur_hash.py.
    """
    seeds = seeds.to(torch.int64)
    state = torch.zeros_like(seeds)
    for block in (seeds & _WORD, (seeds >> 32) & _WORD, positions.to(torch.int64) & _WORD):
        state = _mix(state, block)
    return _finish(_mix(state[:, None], columns.to(torch.int64)[None, :]))


def _mix(state: Any, block: Any) -> Any:
    block = _rotate((block * 0xCC9E2D51) & _WORD, 15)
    block = (block * 0x1B873593) & _WORD
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _WORD


def _rotate(word: Any, bits: int) -> Any:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


def _finish(state: Any) -> Any:
    state = state ^ 16  # bytes hashed
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _WORD
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _WORD
    return state ^ (state >> 16)
