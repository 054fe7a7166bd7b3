"""Runs in SGLang's scheduler processes: what a step failed for ends its own requests alone."""

from __future__ import annotations

from typing import Any

from tandem_sglang import failures, grammars


class EndsAlone:
    """For SGLang's Scheduler: what a step failed for is kept with its result, round the ring of a
    pipeline's stages too, and ends its requests before the step's tokens are taken in.
    """

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run_batch(batch, *args, **kwargs)  # type: ignore[misc]
        failures.keep_noted(result)
        return result

    def launch_batch_sample_if_needed(self, batch_result: Any, *args: Any) -> Any:
        """The sampling that has waited."""
        sampled = super().launch_batch_sample_if_needed(batch_result, *args)  # type: ignore[misc]
        failures.keep_noted(batch_result)
        return sampled

    def process_batch_result(self, batch: Any, result: Any) -> None:
        failures.tell(batch, result)
        super().process_batch_result(batch, result)  # type: ignore[misc]

    def _pp_prepare_tensor_dict(self, result: Any, batch: Any) -> dict[str, Any]:
        sent: dict[str, Any] = super()._pp_prepare_tensor_dict(result, batch)  # type: ignore[misc]
        failures.send(sent, result)
        return sent

    def _pp_prep_batch_result(self, batch: Any, metadata: Any, outputs: Any) -> Any:
        result = super()._pp_prep_batch_result(batch, metadata, outputs)  # type: ignore[misc]
        failures.receive(result, outputs.tensors, grammars.tell)
        return result
