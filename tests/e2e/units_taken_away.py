"""A logits processor whose import has a worker find that SGLang lacks what some units need: those
that LACKING_UNITS names, or with `every` all of them.
"""

from __future__ import annotations

import os
from typing import Any

from tandem_sglang import fitting

MISSING = "a name that was taken away"
_names = os.environ.get("LACKING_UNITS", "").split(",")
_lacking_name = fitting.lacking_name


class Loads:
    """A processor that does nothing: it has this module imported."""

    def __call__(self, input_ids: Any, logits: Any) -> None:
        pass


def _taken_away(unit: Any, additions: Any) -> str:
    taken = unit.name in _names or _names == ["every"]
    return MISSING if taken else _lacking_name(unit, additions)


fitting.lacking_name = _taken_away
