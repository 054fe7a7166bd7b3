"""A classifier for what is tried over sockets: moderations have texts judged by it."""

from __future__ import annotations

from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext


class Judge:
    """Blocks long texts."""

    name = "length"
    blocking = True
    timeout_ms = 60_000

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return {"block": len(ctx.generated_text) > 10}
