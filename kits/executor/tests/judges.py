"""A program's classifier, and requests for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from local import request

from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_executor import Request

HELD_BACK = {"classifiers": {"hold_back": "all", "refusal": "No.", "logprobs": True}}


class Judge:
    """Does what the request's extra field `do` says, and keeps what it was given."""

    blocking, timeout_ms = True, 500.0

    def __init__(self, name: str = "mine") -> None:
        self.name = name
        self.given: list[ScoringContext] = []
        self.threads: set[int] = set()
        self.cancelled = threading.Event()

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        self.given.append(ctx)
        self.threads.add(threading.get_ident())
        match ctx.extra_fields.get("do"):
            case "block":
                return {"block": True, "replacement": "Not this.", "risk": 1}
            case "raise":
                raise RuntimeError("on purpose")
            case "word":
                raise ScoringError("overloaded")
            case "junk":
                return {"risk": object()}
            case "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
        return {"risk": 0}


def doing(what: str, **changes: Any) -> Request:
    return request(extra_fields={"do": what}, **changes)
