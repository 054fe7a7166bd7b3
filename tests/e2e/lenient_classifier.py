"""A classifier that lets everything pass, after a while."""

from __future__ import annotations

import asyncio
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext


class Lenient:
    name = "lenient"
    blocking = True
    timeout_ms = 5000
    resumable = True

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"block": "never said" in ctx.generated_text}
