"""Runs in vLLM's engine process: the class through which the V2 model runner applies logits
processors. vLLM loads it by name, and makes one instance of it, before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from tandem_vllm.requests import STEERING
from tandem_vllm.rows import Rows

if TYPE_CHECKING:
    import torch
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsContext,
        LogitsProcRequestState,
    )


class TandemLogitsProcessorV2(LogitsProcessor):
    """What `logits_processors` names.

    A request has a slot from `add_request` until another one is given it: that a request has ended
    the runner does not say, and its state stays so long. Tokens are on the device, and come from
    there: the prompt once, later one token of each row and step, for which a step waits.
    """

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._rows = Rows.configured(vllm_config.additional_config[STEERING])
        self._states = req_states
        self._given: dict[int, Mapping[str, Any]] = {}
        """By slot, `requests.steering` of the slot's request."""
        self._outputs: dict[int, list[int]] = {}
        """By slot whose tokens were read, those behind the prompt."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Also of a request that was put out of the batch, with what it has generated."""
        self._outputs.pop(req_idx, None)
        self._rows.leave(req_idx)
        given = (sampling_params.extra_args or {}).get(STEERING)
        if given is None:
            self._given.pop(req_idx, None)
        else:
            self._given[req_idx] = given
        return given is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """A row is a batch's place, because nothing drafts tokens here. Rows of prompts that are
        not complete are nobody's: their tokens are dropped.
        """
        places = {
            row: slot
            for row, slot in enumerate(ctx.idx_mapping_np.tolist())
            if slot in self._given
            and ctx.seq_lens_upper_bound_np[row] >= self._states.prefill_len.np[slot]
        }
        if not places:
            return logits
        newest = ctx.input_ids.tolist()
        for row, slot in places.items():
            self._read(slot, int(ctx.seq_lens_upper_bound_np[row]), newest[row])
        self._rows.edit(logits, places)
        return logits

    def _read(self, slot: int, length: int, newest: int) -> None:
        """The slot's sequence has `length` tokens now, the last of which is `newest`."""
        prompt, outputs = int(self._states.prompt_len.np[slot]), self._outputs.get(slot)
        if outputs is not None and prompt + len(outputs) == length - 1:
            outputs.append(newest)
            return
        tokens = self._states.all_token_ids.gpu[slot, :length].tolist()
        self._outputs[slot] = tokens[prompt:]
        self._rows.take(slot, self._given[slot], tokens[:prompt], self._outputs[slot])
