"""Runs in SGLang's scheduler process: which token each row of a step becomes.

A row's token follows from its own logits, parameters, seed and position, and from nothing else of
the batch, not even its kind: a row is never sorted into another order than its tokens', and no sum
is taken whose digits depend on how many rows a kernel was started for. SGLang's sampler draws by
rank in a batch that has one filtered row, and by token id in all others.

Nothing here waits for the device, and no shape depends on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

_WHOLE = 2.0**34
"""What the likeliest token of a row counts in whole numbers, of which sums have one value in
whatever order they are taken. A vocabulary of a quarter of a million comes to less than 2**52,
below which float64 is exact too."""
Multinomial: TypeAlias = Callable[[Any, Any, Any], Any]
"""Draws token ids, (rows, 1), of logits (rows, vocabulary), seeds (rows,) and positions (rows,)."""


def draw(logits: Any, info: Any, positions: Any, multinomial: Multinomial) -> Any:
    """Token ids, (rows,) int64, of `logits`, (rows, vocabulary) float32, which stay as they are.

    `info`: SGLang's SamplingBatchInfo, with a seed for each row. Greedy rows (top_k 1, as SGLang
    says temperature 0) take the first of their largest logits. `positions`, (rows,): how many
    tokens are before each.
    """
    largest = torch.argmax(logits, dim=-1)
    if info.is_all_greedy:
        return largest
    scaled = logits / info.temperatures
    if info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling:
        scaled.masked_fill_(scaled < least_admitted(scaled, info), -torch.inf)
    drawn = multinomial(scaled, info.sampling_seed, positions).view(-1)
    if not info.is_any_greedy:
        return drawn
    return torch.where(info.top_ks <= 1, largest, drawn)


def least_admitted(scaled: Any, info: Any) -> Any:
    """The least of a row's logits after the temperature that top_k, top_p and min_p let in, (rows,
    1). Tokens as likely as the last that they let in are let in too.

    Each filter keeps the head of the row in order, so all of them keep the shortest.
    """
    ranked = scaled.sort(dim=-1, descending=True).values
    weights = (ranked - ranked[:, :1]).exp_()
    kept = torch.arange(scaled.shape[-1], device=scaled.device) < info.top_ks.view(-1, 1)
    if info.need_min_p_sampling:
        kept &= weights >= info.min_ps.view(-1, 1)
    if info.need_top_p_sampling:
        counts = weights.mul_(_WHOLE).to(torch.int64)
        before = counts.cumsum(dim=-1)
        most = (info.top_ps.view(-1, 1).to(torch.float64) * before[:, -1:]).to(torch.int64)
        kept &= before.sub_(counts) <= most
    # An infinite logit has no weight, and keeps itself.
    return ranked.gather(1, kept.sum(dim=-1, keepdim=True).clamp_(min=1) - 1)
