"""Runs in SGLang's scheduler processes: what a step failed for ends its own requests alone."""

from __future__ import annotations

from typing import Any

from tandem_sglang import failures, grammars
from tandem_sglang.failures import Noted

_CODES = "tandem_failures"
"""Where what a stage of a pipeline sends of a result has the codes of its step."""


class EndsAlone:
    """For SGLang's Scheduler: what a step failed for is kept with its result, and ends its requests
    before the step's tokens are taken in.

    Under pipeline parallelism the last stage alone samples, so only its ranks know which forms
    failed, and nothing else is noted. SGLang sends what it made round the ring of stages, and every
    one of them, the last too, takes in what came from the ring, one microbatch after another.
    """

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run_batch(batch, *args, **kwargs)  # type: ignore[misc]
        failures.keep(result, failures.taken())
        return result

    def launch_batch_sample_if_needed(self, batch_result: Any, *args: Any) -> Any:
        """The sampling that has waited."""
        sampled = super().launch_batch_sample_if_needed(batch_result, *args)  # type: ignore[misc]
        failures.keep(batch_result, failures.taken())
        return sampled

    def process_batch_result(self, batch: Any, result: Any) -> None:
        failures.tell(batch, result)
        super().process_batch_result(batch, result)  # type: ignore[misc]

    def _pp_prepare_tensor_dict(self, result: Any, batch: Any) -> dict[str, Any]:
        sent: dict[str, Any] = super()._pp_prepare_tensor_dict(result, batch)  # type: ignore[misc]
        for noted in failures.kept(result):
            sent[_CODES] = noted.codes
        return sent

    def _pp_prep_batch_result(self, batch: Any, metadata: Any, outputs: Any) -> Any:
        result = super()._pp_prep_batch_result(batch, metadata, outputs)  # type: ignore[misc]
        # Not taken out: the next stage is sent the same dict.
        if (codes := outputs.tensors.get(_CODES)) is not None:
            failures.keep(result, [Noted(codes, grammars.tell)])
        return result
