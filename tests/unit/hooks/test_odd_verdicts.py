"""Whatever a hook answers costs its own sequence alone, wherever the hook runs."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from hook_rulings import WAIT_SECONDS, Rulings, work
from odd_verdicts import FAILING, READ

from tandem.hooks.chain import Chain
from tandem.hooks.deferred import DeferredHooks
from tandem.hooks.runner import in_this_process
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.usercode.deadline import OverdueError

RUNNERS = ["inline", "async", "pooled", "pooled async"]
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture(autouse=True)
def interruptions_that_fall_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a call that takes too long may fall into a callback of the garbage collector, which
    tells of it and goes on; the watch then comes again. All else that is told is an error.
    """
    tell = sys.unraisablehook

    def told(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, OverdueError):
            tell(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", told)


class Asked:
    """One way to run the hook, for all of its odd answers."""

    def __init__(self, hooks: DeferredHooks) -> None:
        self.hooks = hooks
        self.rulings = Rulings(hooks)
        self._numbers = count(1)

    async def beside_a_neighbour(self, name: str) -> Any:
        """The ruling on the answer of that name. A neighbour that is asked with it, and again
        afterwards, must not notice.
        """
        odd, neighbour = next(self._numbers), next(self._numbers)
        self.rulings.open(odd, neighbour)
        await self.rulings.ask([work(odd, name, 1), work(neighbour, "fine", 2)])
        await self.rulings.ask([work(neighbour, "still", 3, final=True)])
        assert self.rulings.texts(neighbour) == ["fine", "still"]
        (ruling,) = self.rulings.of(odd)
        return ruling


@pytest.fixture(params=RUNNERS)
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Asked]:
    runner = str(request.param)
    entry = HookEntry(path="odd_verdicts:" + ("AsyncOdd" if "async" in runner else "Odd"))
    settings = HookSettings(chain=(entry,), workers="pooled" in runner)
    hooks: Any
    if settings.workers:
        hooks = HookPool(settings, phase="decode", model="m")
    else:
        hooks = in_this_process(Chain.build(settings, phase="decode", model="m"))
    asked = Asked(hooks)
    await asyncio.wait_for(hooks.start(asked.rulings.deliver), WAIT_SECONDS)
    yield asked
    if isinstance(hooks, HookPool):
        assert hooks.restarts == 0
    await asyncio.wait_for(hooks.close(), WAIT_SECONDS)


@pytest.mark.promise("S0-019", "S0-020", "S6-171")
async def test_an_answer_that_is_no_verdict_fails_its_own_sequence(asked: Asked) -> None:
    for name, (_, words) in FAILING.items():
        ruling = await asked.beside_a_neighbour(name)
        assert ruling.error is not None, name
        assert words in ruling.error.message, name
        assert "secret" not in ruling.error.message, name
        assert len(ruling.error.message) < 300, name
        assert ruling.piece is None, name


async def test_an_answer_of_odd_types_that_can_be_read_is_applied(asked: Asked) -> None:
    for name, (_, shown) in READ.items():
        ruling = await asked.beside_a_neighbour(name)
        assert ruling.error is None, name
        text = None if ruling.piece is None else ruling.piece.text
        assert (type(text), text) == (type(shown), shown), name
        pickle.dumps(ruling.piece)  # nothing of the hook's own is in it
