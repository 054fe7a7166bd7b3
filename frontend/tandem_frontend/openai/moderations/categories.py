"""What an answer's `flagged`, `categories` and `category_scores` are, of a judgement.

Each classifier is a category of its own name, which holds where its answer has `block`; the score
is the answer's `score`, else 1 or 0. An answer may have further categories: as `category_scores`
(name to number), and as `categories` (names of those that hold, or name to yes or no). Where two
classifiers say one name, that category holds if one of them says so, with the higher score.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tandem.hooks.classifiers.classifier_set import Judgement
from tandem_frontend.openai.moderations.wire import Judged, Unjudged

MAX_FLOAT = sys.float_info.max
_FAILED = ("error", "timeout", "cancelled")


def answer_of(judgement: Judgement) -> Judged | Unjudged:
    """Unjudged where any classifier has failed, whatever the others say."""
    for name, decision in judgement.decisions.items():
        if decision in _FAILED:
            return Unjudged(name, str(judgement.scores[name].get("error", decision)))
    holds: dict[str, bool] = {}
    scores: dict[str, float] = {}
    for classifier, answer in judgement.scores.items():
        for name, held, score in _categories(classifier, answer):
            holds[name] = holds.get(name, False) or held
            scores[name] = max(scores.get(name, score), score)
    return Judged(flagged=judgement.blocked, categories=holds, scores=scores)


def _categories(classifier: str, answer: Mapping[str, Any]) -> Iterator[tuple[str, bool, float]]:
    """The name of each category, whether it holds, and its score."""
    yield _category(classifier, answer.get("block") is True, answer.get("score"))
    said = answer.get("categories")
    if isinstance(said, list):
        said = {name: True for name in said if isinstance(name, str)}
    held = said if isinstance(said, dict) else {}
    given = answer.get("category_scores")
    scores = given if isinstance(given, dict) else {}
    for name in {**held, **scores}:
        yield _category(name, held.get(name) is True, scores.get(name))


def _category(name: str, holds: bool, score: Any) -> tuple[str, bool, float]:
    is_number = type(score) in (int, float) and abs(score) <= MAX_FLOAT
    return (name, holds, float(score) if is_number else float(holds))
