"""Classifiers for tests of `/v1/moderations`. What each does follows from the text; a file tells
what has become of calls.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext, ScoringError


class Toxicity:
    """Blocks what says `toxic`."""

    name = "toxicity"
    blocking = True
    timeout_ms = 20_000

    def __init__(self, *, diary: str = "") -> None:
        self._diary = diary

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        text = ctx.generated_text
        if "exit" in text:
            os._exit(3)
        if "hang" in text:
            time.sleep(600)  # noqa: ASYNC251
        if "wait" in text:
            self._write(f"asked {ctx.request_metadata['output_index']}")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._write("cancelled")
                raise
        if "refuse" in text:
            raise ScoringError("unreachable")
        if "raise" in text:
            raise ValueError(text)
        if "nonsense" in text:
            return "fine"  # type: ignore[return-value]
        return {"block": "toxic" in text, "score": 0.9 if "toxic" in text else 0.1}

    def shutdown(self) -> None:
        self._write("shut down")

    def _write(self, line: str) -> None:
        if self._diary:
            with Path(self._diary).open("a", encoding="utf-8") as file:
                file.write(line + "\n")


class Openai:
    """Only scores, in a category of OpenAI's and in some of its own."""

    name = "openai"
    blocking = False
    timeout_ms = 20_000

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        if "late" in ctx.generated_text:
            raise ScoringError("too_late")
        hate = 0.75 if "hate" in ctx.generated_text else 0.25
        return {
            "categories": {
                "hate/threatening": hate > 0.5,
                "moderated": ctx.request_metadata["phase"] == "moderation",
                "strict": ctx.extra_fields == {"my_policy": {"strict": True}},
            },
            "category_scores": {"hate/threatening": hate, "huge": 10**400},
        }


class Unloadable:
    """Cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("there is no model")
