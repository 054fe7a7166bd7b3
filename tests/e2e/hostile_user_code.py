"""User code of a worker that does harm where a request asks for it, and none elsewhere: what the
tests of hooks, classifiers and processors try one by one, in the processes of a running stack.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / "hooks"))

from odd_verdicts import FAILING, READ

from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.contract import Chunk, Verdict, emit
from tandem.logits import BaseLogitsProcessor

ODD_VERDICTS = len(FAILING) + len(READ)
"""The first of them fail their request, and the rest are read as they are meant."""
_MAKE = [make for make, _ in (*FAILING.values(), *READ.values())]
_ODD, _UPPER = "0badcafe", "600dcafe"


def odd_trace(number: int, verdict: int) -> str:
    """A trace id for which the hook answers with the verdict of that number."""
    return f"{_ODD}{verdict:04x}{number:020x}"


def upper_trace(number: int) -> str:
    """A trace id for which the hook shows capitals."""
    return f"{_UPPER}{number:024x}"


class OddHook:
    def __call__(self, chunk: Chunk) -> Verdict:
        if chunk.trace_id.startswith(_ODD):
            verdict: Verdict = _MAKE[int(chunk.trace_id[8:12], 16)]()
            return verdict
        return emit(
            chunk.text_diff.upper() if chunk.trace_id.startswith(_UPPER) else chunk.text_diff
        )


class OddClassifier:
    """Does what the request's metadata say under `do`."""

    name, blocking, timeout_ms = "odd", True, 1000.0

    async def score(self, ctx: ScoringContext) -> Any:
        do = ctx.request_metadata["metadata"].get("do", "")
        if do == "hang":
            await asyncio.Event().wait()
        if do == "raise":
            raise RuntimeError("on purpose")
        if do == "exit":
            raise SystemExit(3)
        if do == "mutate":
            ctx.output_token_ids.clear()
            ctx.request_metadata.clear()
        return CLASSIFIER_ANSWERS.get(do, {"score": 0.1})


class _Lying(dict):  # type: ignore[type-arg]
    def get(self, *_: Any) -> Any:
        raise SystemExit(4)

    __getitem__ = __contains__ = __iter__ = __len__ = items = keys = get  # type: ignore[assignment]


CLASSIFIER_ANSWERS: Mapping[str, Any] = {
    "nothing": None,
    "text": "block",
    "list": [1, 2],
    "no truth": {"block": object()},
    "huge": {"score": 10**400},
    "not a number": {"score": float("nan")},
    "deep": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]},
    "itself": {},
    "lying": _Lying(),
    "replaced by much": {"block": True, "replacement": "x" * 2_000_000},
    "replaced by half a pair": {"block": True, "replacement": "\ud800"},
}
CLASSIFIER_ANSWERS["itself"]["a"] = CLASSIFIER_ANSWERS["itself"]
CLASSIFIER_DEEDS = ("hang", "raise", "exit", "mutate", *CLASSIFIER_ANSWERS)


class OddProcessor(BaseLogitsProcessor):
    """Does harm to its row, at the third token."""

    DEEDS: ClassVar[tuple[str, ...]] = (
        "raise",
        "exit",
        "nothing left",
        "nan",
        "replace",
        "slow",
        "build",
    )

    def __init__(self, do: str) -> None:
        if do == "build":
            raise RuntimeError("on purpose")
        self._do = do
        self._calls = 0

    def __call__(self, input_ids: Any, logits: Any) -> Any:
        self._calls += 1
        if self._calls < 3:
            return None
        match self._do:
            case "raise":
                raise KeyError("on purpose")
            case "exit":
                raise SystemExit(5)
            case "nothing left":
                logits[:] = float("-inf")
            case "nan":
                logits[:] = float("nan")
            case "replace":
                return logits + 1
            case "slow":
                while True:
                    pass
        return None
