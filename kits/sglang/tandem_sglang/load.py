"""What SGLang's schedulers say of their load: snapshots that they write into shared memory.

The first scheduler of each data-parallel rank writes one after each prefill step, after each 15
steps of decode, every 50 ms while nothing can be computed, and once there is nothing to do. To read
them sends nothing and asks nobody: a lock on a file, and a few hundred bytes to decode for each
rank.
"""

from __future__ import annotations

from typing import Any

from tandem.engine.base import RankLoad

_USAGE_ROUNDING = 0.0001
"""SGLang rounds `token_usage` to four digits."""


def read(manager: Any) -> tuple[RankLoad, ...]:
    """What each rank last said, by SGLang's TokenizerManager; empty: none has said anything."""
    snapshots = manager.load_snapshot_reader.read_all()
    return tuple(_rank(each) for each in snapshots if each.timestamp)


def _rank(snapshot: Any) -> RankLoad:
    phase, drafted = snapshot.disaggregation, snapshot.speculative
    return RankLoad(
        rank=snapshot.dp_rank,
        running=snapshot.num_running_reqs,
        queued=snapshot.queues.waiting + snapshot.queues.grammar,
        preallocating=phase.prefill_bootstrap_queue_reqs + phase.decode_prealloc_queue_reqs,
        transferring=phase.prefill_inflight_queue_reqs + phase.decode_transfer_queue_reqs,
        retracted=phase.decode_retracted_queue_reqs,
        kv_tokens_used=_used(snapshot),
        kv_tokens_total=snapshot.max_total_num_tokens,
        accept_length=None if drafted is None else drafted.accept_length,
    )


def _used(snapshot: Any) -> int:
    """Where a model has two pools, such as one for a sliding window, SGLang says the tokens of
    either, and the share of the fuller one: that is the one to fill first.
    """
    used: int = snapshot.num_used_tokens
    total, share = snapshot.max_total_num_tokens, float(snapshot.token_usage)
    rounded = abs(used - share * total) <= _USAGE_ROUNDING * total
    return used if rounded else round(share * total)
