"""Runs in SGLang's scheduler processes: the sampler that Tandem registers there in place of
SGLang's own. It draws each row by itself, and ranks that share a sequence take the first one's
tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import sampler
from torch import distributed

from tandem_sglang import drawing
from tandem_sglang.additions import Additions
from tandem_sglang.seeds import multinomial_with_seed

BACKENDS = ("pytorch", "flashinfer")
"""SGLang's own for cpu and cuda, by name."""


class OwnSampler(sampler.Sampler):
    """Tandem's Sampler."""

    def __init__(self, multinomial: drawing.Multinomial, *, shares: bool) -> None:
        """`shares`: several ranks have a sequence."""
        super().__init__()
        self._multinomial = multinomial
        self._shares = shares

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: Any,
        token_ids_logprobs: Any,
        positions: Any,
        **others: Any,
    ) -> Any:
        """As SGLang's, which draws otherwise. Log-probabilities are what it says under
        SGLANG_RETURN_ORIGINAL_LOGPROB: the logits' own, before the temperature. `others`: for
        watermarks, which SGLang refuses beside a hand-over.
        """
        asked = (return_logprob, top_logprobs_nums, token_ids_logprobs)
        if sampling_info.sampling_seed is None:  # unseeded, or SGLang warms itself up
            return super().forward(logits_output, sampling_info, *asked, positions, **others)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        token_ids = drawing.draw(logits, sampling_info, positions, self._multinomial)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                torch.log_softmax(logits, dim=-1), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        return token_ids

    def _sync_token_ids_across_tp(self, token_ids: Any, info: Any) -> None:
        """In batches with processors the first rank, which answers requests, says the tokens."""
        if self._shares and info.has_custom_logit_processor:
            distributed.broadcast(token_ids, group=self.tp_sync_group, group_src=0)
        else:
            super()._sync_token_ids_across_tp(token_ids, info)


def register(additions: Additions) -> None:
    """Call it before the scheduler starts."""
    shares = additions.ranks > 1
    multinomial = multinomial_with_seed if additions.on_cpu else sampler.multinomial_with_seed
    for name in BACKENDS:
        sampler.register_sampler_backend(name, lambda: OwnSampler(multinomial, shares=shares))
