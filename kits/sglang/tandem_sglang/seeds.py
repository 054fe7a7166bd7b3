"""Runs in SGLang's scheduler process: lets a request's seed decide its tokens.

SGLang heeds seeds only in its deterministic mode, which brings batch-invariant GPU kernels along.
Drawing needs nothing but the seeds, one for each row of a batch, and hashes seed, position and
token: so the two phases draw as one engine would.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import sampler
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from tandem_sglang import drawing
from tandem_sglang.tensors import on_device

_WORD = 0xFFFFFFFF


def seed_every_row(*, on_cpu: bool) -> None:
    """Seed the batches of this process, and draw their rows each by itself."""
    made = SamplingBatchInfo.from_schedule_batch
    multinomial = multinomial_with_seed if on_cpu else sampler.multinomial_with_seed

    def from_schedule_batch(batch: Any, vocab_size: int) -> Any:
        info = made(batch, vocab_size)
        if info.sampling_seed is None:
            seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
            info.sampling_seed = on_device(seeds, torch.int64, batch.device)
        if batch.spec_algorithm.is_none():
            _filter_for_drawn_rows(info, [request.sampling_params for request in batch.reqs])
        return info

    SamplingBatchInfo.from_schedule_batch = staticmethod(from_schedule_batch)
    sampler.Sampler.forward = _forward(sampler.Sampler.forward, multinomial)


def _filter_for_drawn_rows(info: Any, params: list[Any]) -> None:
    """Greedy rows are not filtered, so they need no row of their batch sorted."""
    drawn = [each for each in params if each.top_k > 1]
    info.need_top_k_sampling = any(each.top_k != TOP_K_ALL for each in drawn)
    info.need_top_p_sampling = any(each.top_p != 1.0 for each in drawn)
    info.need_min_p_sampling = any(each.min_p > 0 for each in drawn)


def _forward(original: Any, multinomial: drawing.Multinomial) -> Any:
    """SGLang's Sampler.forward, which draws otherwise. Log-probabilities are what it says under
    SGLANG_RETURN_ORIGINAL_LOGPROB: the logits' own, before the temperature. `others`: for
    watermarks, which SGLang refuses beside a hand-over.
    """

    def forward(
        self: Any,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: Any,
        token_ids_logprobs: Any,
        positions: Any,
        **others: Any,
    ) -> Any:
        asked = (return_logprob, top_logprobs_nums, token_ids_logprobs)
        if sampling_info.sampling_seed is None:  # of no request: SGLang warms itself up
            return original(self, logits_output, sampling_info, *asked, positions, **others)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        token_ids = drawing.draw(logits, sampling_info, positions, multinomial)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                torch.log_softmax(logits, dim=-1), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        return token_ids

    return forward


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
