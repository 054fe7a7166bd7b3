"""An operator's code, for engines in a test's own process. What it saw is kept in its classes."""

from __future__ import annotations

from typing import Any, ClassVar

from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.contract import Chunk, Verdict, emit, terminate

REASON = "a hook of this test"


class Cutter:
    """Notes the phase of each chunk, and ends decode's output with the third one."""

    phases: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self._chunks = 0

    def __call__(self, chunk: Chunk) -> Verdict:
        if not chunk.aborted:
            self.phases.append(chunk.phase)
        if chunk.phase == "decode":
            self._chunks += 1
        if self._chunks == 3:
            self._chunks = 0
            return terminate(REASON)
        return emit(chunk.text_diff)


class Blocker:
    """Blocks each output, and notes its text."""

    texts: ClassVar[list[str]] = []
    name = "blocker"
    blocking = True
    timeout_ms = 1000.0

    async def score(self, context: ScoringContext) -> dict[str, Any]:
        self.texts.append(context.generated_text)
        return {"block": True}
