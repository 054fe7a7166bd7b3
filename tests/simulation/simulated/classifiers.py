"""A classifier that blocks what the scripts say, late."""

from __future__ import annotations

import asyncio
from typing import Any

from simulated.dice import Dice
from simulated.script import REFUSAL, Judged, Request, token_of
from tandem.hooks.classifiers.classifier_set import ClassifierSet
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.settings import parse

NAME = "scripted"
WINDOW_TOKENS = 2
WHY = "as the script has it, " * 10
"""Makes scores that are larger than small rows."""


class ScriptedClassifier:
    """Blocks an output from the position on that its script names."""

    name = NAME
    blocking = True
    timeout_ms = 60_000
    resumable = True

    def __init__(self, dice: Dice, judged: Judged, requests: dict[int, Request]) -> None:
        self._dice, self._judged, self._requests = dice, judged, requests

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        await asyncio.sleep(self._dice.judge_seconds(late=self._judged.late))
        about = ctx.request_metadata
        return {
            "block": self._blocks(ctx),
            "of": about["trace_id"],
            "output": about["output_index"],
            "why": WHY,
        }

    def _blocks(self, ctx: ScoringContext) -> bool:
        """By the words of the text: it is what a client would see, rewritten or not."""
        for word in ctx.generated_text.replace("[", "<").replace("]", ">").split("<")[1:]:
            token = token_of(int(word[:-1], 16))
            if f"{token.request:032x}" != ctx.request_metadata["trace_id"]:
                self._dice.fault(f"a classifier of {ctx.request_metadata} is shown {token}")
            script = self._requests[token.request].run(token.prompt, token.output, token.run)
            if script.blocked_at is not None and token.position >= script.blocked_at:
                if script.classifier_fails:
                    raise ValueError("the classifier raised")
                return True
        return False


def build_classifiers(dice: Dice, judged: Judged, requests: dict[int, Request]) -> ClassifierSet:
    """As a model's settings would."""
    given: dict[str, Any] = {
        "hold_back": judged.hold_back,
        "window_tokens": WINDOW_TOKENS,
        "refusal": REFUSAL,
    }
    if judged.regenerations and judged.hold_back == "all":
        given["regenerate"] = {"times": judged.regenerations}
    classifiers = ClassifierSet(parse(given), model="any")
    classifiers.register_external_classifier_hook(ScriptedClassifier(dice, judged, requests))
    return classifiers
