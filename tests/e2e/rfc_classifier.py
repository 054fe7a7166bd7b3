"""A classifier as a reader of vLLM's RFC "External post-generation classifier hook API" writes it:
from the RFC's text alone, and without an import of Tandem.
"""

from __future__ import annotations

from typing import Any, Protocol


class ScoringContext(Protocol):
    """The RFC's, retyped: what a reader holds against what arrives."""

    request_id: str
    prompt: str
    generated_text: str
    extra_fields: dict[str, Any]
    finish_reason: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    request_metadata: dict[str, Any]


KINDS = {
    "request_id": str,
    "prompt": str,
    "generated_text": str,
    "extra_fields": dict,
    "finish_reason": str,
    "prompt_token_ids": list,
    "output_token_ids": list,
    "request_metadata": dict,
}


class PolicyHook:
    """Blocks where the client's extra field says so, and tells what it saw as its scores."""

    name: str = "policy"
    blocking: bool = True
    timeout_ms: int = 2000

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        for field, kind in KINDS.items():
            assert isinstance(getattr(ctx, field), kind), field
        assert ctx.prompt
        assert ctx.prompt_token_ids
        assert ctx.finish_reason in ("stop", "length")
        scores: dict[str, Any] = {"tokens": len(ctx.output_token_ids), "seen": ctx.extra_fields}
        if ctx.extra_fields.get("my_policy") == "strict":
            return {"block": True, "replacement": "Replaced by policy.", **scores}
        return {"block": False, **scores}
