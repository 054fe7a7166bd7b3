"""Runs in SGLang's scheduler processes: what ranks that share a sequence decide alike.

Each rank plans its batches by itself, and they have to be the same: where a request ends on one of
them alone, their sums no longer fit, which ends the process on CPUs and may wait for ever on GPUs.
But a processor may raise on one rank alone, or take too long there, or leave another row. So in a
step whose rows have processors the ranks end the same rows, and take the first rank's tokens. A
batch without processors is run as ever.

Both go the way of the model's own sums, in the order of the device's work: no host waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import distributed

from tandem_sglang.additions import Additions

Agree = Callable[[Any], None]
"""Makes each of some codes, int32, the largest of all ranks, in place."""


def agree_of(additions: Additions) -> Agree | None:
    """How the ranks of an engine agree. None: there is one."""
    return agree if additions.ranks > 1 else None


def agree(codes: Any) -> None:
    """See Agree."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    # Those that SGLang's sampler goes by: data-parallel ranks have batches of their own.
    group = parallel.attn_tp_group if is_dp_attention_enabled() else parallel.tp_group
    distributed.all_reduce(codes, op=distributed.ReduceOp.MAX, group=group.device_group)
