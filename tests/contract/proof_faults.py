"""Three units of an SGLang engine that do not do what they are for, though SGLang has all names.
Schedulers load this as the module of a logits processor.
"""

from __future__ import annotations

import sys
from typing import Any


class Loads:
    """A processor that does nothing: it has this module imported."""

    def __call__(self, input_ids: Any, logits: Any) -> None:
        pass


def _install() -> None:
    from tandem_sglang import grammars, penalties, seeds

    hash_ = seeds.murmur_hash32
    seeds.murmur_hash32 = lambda seed, positions, columns: hash_(seed, positions + 1, columns)
    penalties.Penalties.count = lambda *_: None  # type: ignore[method-assign]
    grammars._fail = lambda *_: None


_upstream = sys.modules.get("sglang.srt.managers.scheduler")
if _upstream is not None and _upstream.Scheduler.__module__.startswith("tandem_sglang"):
    _install()
