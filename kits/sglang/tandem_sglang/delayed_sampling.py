"""Runs in SGLang's scheduler process: lets a step's sampling wait for the tokens before it, where a
logits processor reads them.

Overlap scheduling samples a step before it has processed the result of the one before, so the last
token is not in the history yet. SGLang can wait with the sampling, not with the forward pass, as it
does for grammars; for everything else that is a switch of the whole process. Here it is decided
batch by batch, so a batch without such a processor is run as ever.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sglang.srt.environ import envs

from tandem_sglang.requests import HISTORY_KEY


class DelayedSampling:
    """SGLang's switch of it, which its worker reads with each batch."""

    def __init__(self) -> None:
        """If SGLANG_ENABLE_DELAY_SAMPLE is on, it stays on."""
        self._always = self._now = bool(envs.SGLANG_ENABLE_DELAY_SAMPLE.get())

    def decide(self, batch: Any) -> None:
        """Whether the sampling of this batch, which runs next, waits."""
        wanted = self._always or reads_history(batch)
        if wanted != self._now:
            envs.SGLANG_ENABLE_DELAY_SAMPLE.set(wanted)
            self._now = wanted


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


class DelaysSampling:
    """For SGLang's Scheduler."""

    @cached_property
    def _delayed(self) -> DelayedSampling:
        return DelayedSampling()

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._delayed.decide(batch)
        return super().run_batch(batch, *args, **kwargs)  # type: ignore[misc]
