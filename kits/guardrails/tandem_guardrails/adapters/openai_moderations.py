"""OpenAI's `/v1/moderations`, and what speaks the same.

Sent: `model` and `input`. Read: `results`, each with `flagged`, `categories` (name to yes or no)
and `category_scores` (name to a number from 0 to 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_guardrails.adapters.common import ServiceClassifier, number, of_type


class ModerationsClassifier(ServiceClassifier):
    """OpenAI's moderations; `openai_moderations` in the settings."""

    name = "openai_moderations"
    timeout_ms: float = 2000

    def __init__(
        self,
        *,
        url: str = "https://api.openai.com/v1",
        model: str = "omni-moderation-latest",
        thresholds: Mapping[str, float] | None = None,
        block_flagged: bool = True,
        api_key_file: str = "",
        api_key_env: str = "",
        http: Mapping[str, Any] | None = None,
    ) -> None:
        """`thresholds`: block where a category's score is at least that; `block_flagged`: block
        what the service itself flags. Raises LoadError.
        """
        super().__init__(url, "/moderations", api_key_file, api_key_env, http)
        self._model = model
        self._block_flagged = block_flagged
        self._thresholds = dict(thresholds or {})
        for category, threshold in self._thresholds.items():
            if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
                raise LoadError(f"thresholds.{category} must be 0 to 1, not {threshold!r}")
        if not self._thresholds and not block_flagged:
            raise LoadError("nothing would ever be blocked: set thresholds or block_flagged")

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        return {"model": self._model, "input": ctx.generated_text}

    def _judge(self, ctx: ScoringContext, answer: dict[str, Any]) -> dict[str, Any]:
        results = of_type(answer.get("results"), list)
        if len(results) != 1:
            raise ScoringError("bad_answer")
        result = of_type(results[0], dict)
        flagged = of_type(result.get("flagged"), bool)
        categories = of_type(result.get("categories"), dict)
        scores = {
            name: number(score)
            for name, score in of_type(result.get("category_scores"), dict).items()
        }
        if not self._thresholds.keys() <= scores.keys():
            raise ScoringError("unknown_category")
        over = [name for name, least in self._thresholds.items() if scores[name] >= least]
        return {
            "block": (flagged and self._block_flagged) or bool(over),
            "flagged": flagged,
            "categories": sorted(name for name, is_flagged in categories.items() if is_flagged),
            "over_threshold": sorted(over),
            "category_scores": scores,
        }
