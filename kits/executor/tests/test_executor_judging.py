"""The program's side of classifiers that workers in another process ask for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tandem_executor.live import LiveClassifier
from tandem_executor.local.judging import ANSWER, Judges, message

CONTEXT = {"request_id": "1", "prompt": "p", "generated_text": "t"}


class Judge:
    """Begins, and never ends."""

    name = "judge"
    blocking = True
    timeout_ms = 60_000.0

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def score(self, ctx: Any) -> dict[str, Any]:
        self.began.set()
        await asyncio.Event().wait()
        return {}


async def _judging() -> tuple[Judges, Judge, list[list[Any]]]:
    """One classifier is registered. What the program says comes into the list."""
    said: list[list[Any]] = []
    judges, judge = Judges(lambda data: said.append(_read(data))), Judge()
    registering = asyncio.create_task(judges.register(LiveClassifier(judge, lambda: None)))
    await asyncio.sleep(0)
    judges.take("registered", "judge", "")
    await registering
    said.clear()
    return judges, judge, said


def _read(data: bytes) -> list[Any]:
    found: list[Any] = json.loads(data[len(message("")) - len(b'[""]') :])
    return found


@pytest.mark.promise("S4-115")
@pytest.mark.parametrize("begun", [True, False])
async def test_a_call_that_is_cancelled_is_answered_whether_it_has_begun_or_not(
    begun: bool,
) -> None:
    """The two messages may come in one turn of the loop. The worker waits for the answer."""
    judges, judge, said = await _judging()
    judges.take("score", 7, "judge", CONTEXT)
    if begun:
        await asyncio.wait_for(judge.began.wait(), 5)
    judges.take("cancel", 7)
    for _ in range(5):
        await asyncio.sleep(0)
    assert said == [[ANSWER, 7, None, "cancelled"]]
    assert judge.began.is_set() == begun
