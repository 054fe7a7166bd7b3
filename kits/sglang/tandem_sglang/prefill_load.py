"""Runs in a prefill engine's scheduler processes: load snapshots count the batch that is computed.
SGLang's count the one that decodes, and prefill has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang.srt.disaggregation.utils import DisaggregationMode


class CountsPrefilling:
    """For SGLang's Scheduler."""

    disaggregation_mode: Any
    load_inquirer: Any
    cur_batch_for_debug: Any
    running_batch: Any

    def init_load_inquirer(self) -> None:
        super().init_load_inquirer()  # type: ignore[misc]
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            self.load_inquirer = replace(self.load_inquirer, get_running_batch=self._computed)

    def _computed(self) -> Any:
        return self.cur_batch_for_debug or self.running_batch
