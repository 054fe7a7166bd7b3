"""Runs in SGLang's scheduler processes under pipeline parallelism: what a step has failed for ends
the same requests on all stages.

The last stage alone samples, so only its ranks know which forms failed. SGLang sends what it made
round the ring of stages, and every one of them, the last too, takes in what came from the ring, one
microbatch after another. So what was noted of a step travels with the step's tokens.
"""

from __future__ import annotations

import functools
from typing import Any

from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.utils.common import async_d2h

from tandem_sglang import failures

_CODES = "tandem_failures"


def carry(tell: failures.Tell) -> None:
    """Call it before the scheduler starts. `tell`: what all that is noted in a pipeline is noted
    with; a step has one note at most.
    """
    prepare = Scheduler._pp_prepare_tensor_dict
    rebuild = Scheduler._pp_prep_batch_result

    @functools.wraps(prepare)
    def prepare_tensor_dict(self: Any, result: Any, batch: Any) -> dict[str, Any]:
        sent: dict[str, Any] = prepare(self, result, batch)
        for noted in failures.kept(result):
            sent[_CODES] = noted.codes
        return sent

    @functools.wraps(rebuild)
    def prep_batch_result(self: Any, batch: Any, metadata: Any, outputs: Any) -> Any:
        result = rebuild(self, batch, metadata, outputs)
        # Not taken out: the next stage is sent the same dict. The loop awaits this copy too.
        if (codes := outputs.tensors.get(_CODES)) is not None:
            failures.keep(result, [failures.Noted(async_d2h(codes), tell)])
        return result

    Scheduler._pp_prepare_tensor_dict = prepare_tensor_dict
    Scheduler._pp_prep_batch_result = prep_batch_result
