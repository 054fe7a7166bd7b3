"""Which logits processors a request may name, and how they travel to vLLM's process."""

from __future__ import annotations

from dataclasses import replace

from tandem.engine.base import EngineRequest
from tandem.logits.model import Model
from tandem.logits.processor import EVERYTHING
from tandem.logits.ready.choice import Choice
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry


def spec(
    request: EngineRequest, registry: Registry, model: Model
) -> tuple[LogitsProcessorEntry, ...]:
    """The request's processors, in order. Raises RequestError for those that cannot be run."""
    if request.logits is None:
        return ()
    built = registry.check(
        request.logits,
        available=EVERYTHING,
        model=model,
        max_tokens=request.sampling.max_tokens,
    )
    return tuple(
        # vLLM's process would tokenise a choice on its loop.
        replace(entry, args=processor.in_tokens() if isinstance(processor, Choice) else entry.args)
        for entry, processor in zip(request.logits.named(), built, strict=True)
    )
