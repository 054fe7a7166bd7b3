"""SGLang's classes as an engine has them, with every unit, and what such an engine is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tandem.engine.kv_tag import KvCheck
from tandem.logits.registry import Registry
from tandem_sglang import fitting, ranks, units
from tandem_sglang.additions import Additions

DEFAULT = Additions(
    seeded=True,
    speculative=False,
    on_cpu=True,
    ranks=1,
    stages=1,
    peer_ranks=1,
    registry=Registry.builtin().portable(),
    model={"vocabulary": 8, "eos_token_ids": [7]},
    transfer_backend="nixl",
    handover_timeout_seconds=60,
    grammar_cache_bytes=1 << 20,
    kv_check=KvCheck.TAG,
    revision="of the model",
)


def own(place: str, **given: Any) -> Any:
    """The subclass of the class at `place` that an engine with these additions has."""
    additions = replace(DEFAULT, **given)
    every = [unit for unit in units.UNITS if unit.asked(additions)]
    return fitting.subclass(place, every, additions)


def own_scheduler(**given: Any) -> Any:
    return own(units.SCHEDULER, **given)


def agreeing(agree: Callable[[Any], None] | None) -> Additions:
    """Of an engine whose ranks agree so; None: it has one."""
    if agree is not None:
        ranks.agree = agree
    return replace(DEFAULT, ranks=1 if agree is None else 2)


OwnNixlManager = own(units.KV_MANAGER)
OwnMooncakeManager = own(units.KV_MANAGER, transfer_backend="mooncake")
