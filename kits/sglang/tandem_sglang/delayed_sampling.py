"""Runs in SGLang's scheduler process: lets a step's sampling wait for the tokens before it, where a
logits processor reads them.

Overlap scheduling samples a step before it has processed the result of the one before, so the last
token is not in the history yet. SGLang can wait with the sampling, not with the forward pass, as it
does for grammars; for everything else that is a switch of the whole process. Here it is decided
batch by batch, so a batch without such a processor is run as ever.
"""

from __future__ import annotations

import functools
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.tp_worker import TpModelWorker

from tandem_sglang.requests import HISTORY_KEY


def delay_where_history_is_read() -> None:
    """Let sampling wait in this process. If SGLANG_ENABLE_DELAY_SAMPLE is on, it stays on."""
    always = bool(envs.SGLANG_ENABLE_DELAY_SAMPLE.get())
    original = TpModelWorker.forward_batch_generation
    now = always

    @functools.wraps(original)
    def forward(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal now
        now = always or reads_history(batch)
        return original(self, batch, *args, **kwargs)

    envs.SGLANG_ENABLE_DELAY_SAMPLE.get = lambda: now
    TpModelWorker.forward_batch_generation = forward


def reads_history(batch: Any) -> bool:
    """Whether a request of this batch has a processor that reads tokens."""
    if batch is None or batch.sampling_info is None:
        return False
    if not batch.sampling_info.has_custom_logit_processor:
        return False
    return any(
        isinstance(params, dict) and params.get(HISTORY_KEY)
        for params in (request.sampling_params.custom_params for request in batch.reqs)
    )
