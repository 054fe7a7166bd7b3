"""A served model, as one router describes it and as all routers together do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.v1 import router_pb2, worker_pb2


def takes(model: router_pb2.ServedModel) -> bool:
    """Whether requests for it are not refused."""
    return model.ready_pairs > 0 or model.waits


def longest_context(model: router_pb2.ServedModel) -> int:
    """The most tokens that some pair of it takes; 0: not said."""
    return max(model.longest_context, model.limits.context_length)


def union(models: Sequence[router_pb2.ServedModel]) -> router_pb2.ServedModel | None:
    """What is served of the model, by all routers that say so. Where they serve it with several
    tokenizers, that with the most pairs; requests name it. None: nothing is, or several models are.
    """
    if len({model.name for model in models}) != 1:
        return None
    best = max(models, key=lambda model: (model.ready_pairs, model.waits))
    mine = [each for each in models if each.tokenizer_sha256 == best.tokenizer_sha256]
    mine = [each for each in mine if takes(each)] or mine
    return best if len(mine) == 1 else _joined(mine)


def _joined(models: Sequence[router_pb2.ServedModel]) -> router_pb2.ServedModel:
    """One edition of it: what every pair can take, and what some pair can."""
    limits = [each.limits for each in models]
    names = [set(each.logits_processors) for each in models]
    some = [name for each in models for name in each.any_logits_processors]
    return router_pb2.ServedModel(
        name=models[0].name,
        tokenizer_sha256=models[0].tokenizer_sha256,
        limits=worker_pb2.Limits(
            max_sequences=_least(each.max_sequences for each in limits),
            context_length=_least(each.context_length for each in limits),
            vocabulary=_least(each.vocabulary for each in limits),
        ),
        ready_pairs=max(each.ready_pairs for each in models),
        logits_processors=sorted(set.intersection(*names)),
        waits=any(each.waits for each in models),
        longest_context=max(map(longest_context, models)),
        any_logits_processors=sorted(set.union(*names, some)),
        kv_cache=_widest(models),
        lora_adapters=sorted({name for each in models for name in each.lora_adapters}),
        simulated=any(each.simulated for each in models),
    )


def _widest(models: Sequence[router_pb2.ServedModel]) -> router_pb2.KvCache | None:
    """The largest said. Routers may share workers, so nothing is added up."""
    said = [each.kv_cache for each in models if each.HasField("kv_cache")]
    return max(said, key=lambda cache: cache.pages, default=None)


def _least(numbers: Iterable[int]) -> int:
    """The smallest number above 0; 0: every number is 0."""
    return min(filter(None, numbers), default=0)
