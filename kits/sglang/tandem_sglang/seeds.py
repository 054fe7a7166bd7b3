"""Runs in SGLang's scheduler process: lets a request's seed decide its tokens.

SGLang heeds seeds only in its deterministic mode, which brings batch-invariant GPU kernels along.
Drawing needs nothing but the seeds, one for each row of a batch, and hashes seed, position and
token: so the two phases draw as one engine would.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from tandem_sglang.additions import Additions
from tandem_sglang.tensors import on_device

_WORD = 0xFFFFFFFF


def seed_every_row(_: Additions) -> None:
    """Give each row of the batches of this process a seed. Call it before the scheduler starts."""
    made = SamplingBatchInfo.from_schedule_batch

    def from_schedule_batch(batch: Any, vocab_size: int) -> Any:
        info = made(batch, vocab_size)
        if info.sampling_seed is None:
            seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
            info.sampling_seed = on_device(seeds, torch.int64, batch.device)
        if batch.spec_algorithm.is_none():
            _filter_for_drawn_rows(info, [request.sampling_params for request in batch.reqs])
        return info

    SamplingBatchInfo.from_schedule_batch = staticmethod(from_schedule_batch)


def _filter_for_drawn_rows(info: Any, params: list[Any]) -> None:
    """Greedy rows are not filtered, so they need no row of their batch sorted."""
    drawn = [each for each in params if each.top_k > 1]
    info.need_top_k_sampling = any(each.top_k != TOP_K_ALL for each in drawn)
    info.need_top_p_sampling = any(each.top_p != 1.0 for each in drawn)
    info.need_min_p_sampling = any(each.min_p > 0 for each in drawn)


def multinomial_with_seed(logprobs: Any, seeds: Any, positions: Any) -> Any:
    """A column, (rows, 1), for each row of `logprobs`, (rows, columns), drawn with Gumbel noise.
    They need not be normalised.

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
