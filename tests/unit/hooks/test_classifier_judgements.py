"""Judgements run beside their worker, each with one owner and one end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import Any

import pytest

from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.judgements import Judgements
from tandem.hooks.classifiers.settings import ClassifierSettings

BOUND = 60.0
CONTEXT = ScoringContext(request_id="r", prompt="p", generated_text="t")


class Gated:
    """Answers when it is let."""

    name, blocking, timeout_ms = "gated", True, 60_000

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"block": True, "replacement": ctx.request_id}


class Bench:
    def __init__(self) -> None:
        self.classifier = Gated()
        self.classifiers = ClassifierSet(ClassifierSettings(), model="m")
        self.classifiers.register_external_classifier_hook(self.classifier)
        self.delivered: asyncio.Queue[tuple[Hashable, Judgement]] = asyncio.Queue()
        self.judgements = Judgements(
            self.classifiers, lambda key, judgement: self.delivered.put_nowait((key, judgement))
        )


async def test_a_judgement_is_delivered_to_who_asked() -> None:
    bench = Bench()
    bench.classifier.gate.set()
    async with asyncio.timeout(BOUND):
        bench.judgements.ask(7, CONTEXT)
        key, judgement = await bench.delivered.get()
    assert key == 7
    assert judgement.replacement == "r"
    assert len(bench.judgements) == 0


@pytest.mark.promise("S4-115")
async def test_a_cancelled_judgement_cancels_its_classifiers_and_is_not_delivered() -> None:
    bench = Bench()
    async with asyncio.timeout(BOUND):
        bench.judgements.ask(7, CONTEXT)
        await bench.classifier.entered.wait()
        bench.judgements.cancel(7)
        await bench.classifier.cancelled.wait()
        bench.classifier.gate.set()
        bench.judgements.ask(8, CONTEXT)
        assert (await bench.delivered.get())[0] == 8
    assert bench.delivered.empty()
    bench.judgements.cancel("never asked")


async def test_closing_leaves_no_task_behind() -> None:
    bench = Bench()
    async with asyncio.timeout(BOUND):
        for key in range(3):
            bench.judgements.ask(key, CONTEXT)
        await bench.classifier.entered.wait()
        await bench.judgements.close()
        await bench.classifiers.shutdown()
    assert len(bench.judgements) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_delivery_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.classifier.gate.set()

    def deliver(key: Hashable, judgement: Judgement) -> None:
        bench.delivered.put_nowait((key, judgement))
        raise RuntimeError

    judgements = Judgements(bench.classifiers, deliver)
    async with asyncio.timeout(BOUND):
        with caplog.at_level(logging.ERROR):
            judgements.ask(1, CONTEXT)
            await bench.delivered.get()
            await judgements.close()
    assert "a judgement could not be delivered" in caplog.text
