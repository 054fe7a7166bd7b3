"""User code for the stacks of these tests."""

from __future__ import annotations

import random
import time
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate


class Hook:
    """Passes everything on."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff)


class Classifier:
    """Passes everything on."""

    name = "toxicity"
    blocking = True

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return {"score": 0.1}


class BusyHook:
    """Rewrites, suppresses and terminates some chunks, and is slow or fails now and then."""

    def __init__(self) -> None:
        self._choice = random.Random(1)

    def __call__(self, chunk: Chunk) -> Verdict:
        number = self._choice.random()
        if number < 0.00003:
            raise RuntimeError("it fails on purpose")
        if number < 0.0005:
            return terminate("busy")
        if number < 0.01:
            return suppress()
        if number < 0.04:
            return emit(chunk.text_diff.upper())
        if number > 0.995:
            time.sleep(0.01)
        return emit(chunk.text_diff)
