"""A classifier: it judges an answer once it is complete, and may replace it.

    # the decode worker's settings
    classifiers:
      hold_back: all            # nothing is shown before the judgement
      entries:
        - path: examples.classify_tone:Tone
          config: {threshold: 0.2}

What it answers is under external_scores["tone"] of the result. Here it counts words; yours would
ask a model.
"""

from __future__ import annotations

import re
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext

RUDE = frozenset({"idiot", "stupid", "shut"})
WORD = re.compile(r"\w+")


class Tone:
    """Scores the share of rude words, and blocks an answer at the threshold."""

    name = "tone"
    blocking = True
    timeout_ms = 500.0

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = threshold

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        words = WORD.findall(ctx.generated_text.lower())
        share = sum(word in RUDE for word in words) / max(len(words), 1)
        return {
            "score": round(share, 3),
            "block": share >= self._threshold,
            "replacement": "Let me put that more kindly another time.",
        }
