"""What a sim engine says of its load: where each sequence is, and the pages of its KV cache."""

from __future__ import annotations

from collections import Counter

from tandem.engine.base import RankLoad, Role
from tandem_sim.handover import Handover
from tandem_sim.kv_pool import KvPool
from tandem_sim.scheduler import Scheduler
from tandem_sim.sequence import SequenceStage


def rank_load(role: Role, scheduler: Scheduler, handover: Handover, pool: KvPool) -> RankLoad:
    """The one scheduler's load. Nothing is retracted: an output's pages are allocated at once."""
    sequences = scheduler.sequences()
    stages = Counter(each.stage for each in sequences)
    queued, preallocating = scheduler.uncomputed, 0
    if role is Role.DECODE:
        preallocating = stages[SequenceStage.QUEUED]
    else:
        queued += stages[SequenceStage.QUEUED]
    if role is Role.PREFILL:
        preallocating = sum(
            each.stage is SequenceStage.TRANSFER and handover.sender.awaits_offer(each.request.room)
            for each in sequences
        )
    moving = stages[SequenceStage.TRANSFER]
    computed = stages[SequenceStage.PREFILL] + stages[SequenceStage.DECODE]
    return RankLoad(
        running=computed - scheduler.uncomputed,
        queued=queued,
        preallocating=preallocating,
        transferring=moving - preallocating if role is Role.PREFILL else moving,
        retracted=0,
        kv_tokens_used=pool.used_tokens,
        kv_tokens_total=pool.total_tokens,
    )
