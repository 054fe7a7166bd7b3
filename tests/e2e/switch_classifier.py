"""Classifiers for tests whose behaviour the test chooses by the request's metadata (`do`), and that
write down every context. Contexts go to the file named by SWITCH_CLASSIFIER_LOG, one JSON object a
line.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext


class SwitchClassifier:
    """`do` names what it does; `only_final` lets windows pass."""

    def __init__(self, name: str, blocking: bool, timeout_ms: float = 1000) -> None:
        self.name, self.blocking, self.timeout_ms = name, blocking, timeout_ms

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        path = os.environ["SWITCH_CLASSIFIER_LOG"]
        line = json.dumps({"classifier": self.name, **asdict(ctx)}) + "\n"
        with open(path, "a") as log:  # noqa: ASYNC230 - a line of a test
            log.write(line)
        do = ctx.request_metadata["metadata"].get(f"do_{self.name}", "pass")
        if do == "hang":
            await asyncio.Event().wait()
        return self._answer(do, ctx)

    def _answer(self, do: str, ctx: ScoringContext) -> dict[str, Any]:
        if do == "fail":
            raise RuntimeError("this test's classifier fails on purpose")
        if do == "mutate":
            ctx.output_token_ids.clear()
            ctx.request_metadata.clear()
        if do == "block":
            return {"block": True, "score": 0.9}
        if do == "block_second" and ctx.request_metadata["output_index"] == 1:
            return {"block": True}
        if do == "block_at_end" and ctx.request_metadata["is_final"]:
            return {"block": True}
        if do == "block_first_run" and ctx.request_metadata["regeneration"] == 0:
            return {"block": True}
        if do == "replace":
            return {"block": True, "replacement": f"replaced by {self.name}"}
        return {"score": 0.1}
