"""The answer of `/v1/moderations`, in OpenAI's shape; categories are those of the classifiers."""

from __future__ import annotations

from typing import Literal

import msgspec

from tandem_frontend.openai.moderations.wire import Judged

InputType = Literal["text"]


class Moderation(msgspec.Struct, kw_only=True):
    """The verdict of all classifiers on one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[InputType]]

    @staticmethod
    def of(judged: Judged) -> Moderation:
        return Moderation(
            flagged=judged.flagged,
            categories=judged.categories,
            category_scores=judged.scores,
            category_applied_input_types={name: ["text"] for name in judged.categories},
        )


class ModerationAnswer(msgspec.Struct, kw_only=True):
    """The verdicts on all inputs, in the order of the inputs."""

    id: str
    model: str
    """Names of the classifiers, joined by `+`."""
    results: list[Moderation]
