"""What an engine hands on: in order, and what comes together as one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tandem.engine.base import Delta, Step
from tandem.engine.mailbox import Mailbox
from tandem.errors import EngineError

SECONDS = 60.0


def deltas(*numbers: int) -> list[Delta]:
    return [Delta(number, ()) for number in numbers]


class Heard:
    """A mailbox whose steps are taken, and the requests in each."""

    def __init__(self, then: Callable[[Step], object] = lambda step: None) -> None:
        self.mailbox = Mailbox()
        self.steps: list[list[int]] = []
        self.handing_on: asyncio.Task[None] | None = None
        self._then = then

    async def begin(self) -> None:
        self.handing_on = asyncio.create_task(self.mailbox.hand_on(self._take))
        await asyncio.sleep(0)

    async def end(self) -> None:
        assert self.handing_on is not None
        async with asyncio.timeout(SECONDS):
            await self.handing_on

    def _take(self, step: Step) -> None:
        self.steps.append([delta.request_id for delta in step])
        self._then(step)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.promise("S5-456")
async def test_what_a_turn_brings_is_one_step() -> None:
    heard = Heard()
    await heard.begin()
    heard.mailbox.put(deltas(1, 2))
    heard.mailbox.put(deltas(3))
    assert heard.steps == []
    await turns()
    assert heard.steps == [[1, 2, 3]]
    heard.mailbox.put(deltas(4))
    await turns()
    assert heard.steps == [[1, 2, 3], [4]]


@pytest.mark.promise("S5-456")
async def test_what_is_given_at_once_comes_after_what_came_before_it() -> None:
    heard = Heard()
    await heard.begin()
    heard.mailbox.put(deltas(1))
    heard.mailbox.put(deltas(2))
    heard.mailbox.give()
    assert heard.steps == [[1, 2]]
    await turns()
    assert heard.steps == [[1, 2]]


async def test_what_is_given_comes_behind_what_is_there_in_one_step() -> None:
    heard = Heard()
    heard.mailbox.give(deltas(1))
    await heard.begin()
    heard.mailbox.put(deltas(2))
    heard.mailbox.give(deltas(3))
    assert heard.steps == [[1, 2, 3]]
    heard.mailbox.close()
    heard.mailbox.give(deltas(4))
    await heard.end()
    assert heard.steps == [[1, 2, 3]]


async def test_what_came_before_anybody_took_is_the_first_step() -> None:
    heard = Heard()
    heard.mailbox.put(deltas(1))
    heard.mailbox.give()
    heard.mailbox.put(deltas(2))
    await heard.begin()
    await turns()
    assert heard.steps == [[1, 2]]


async def test_what_a_step_brings_about_is_a_step_of_its_own() -> None:
    heard = Heard(lambda step: step[0].request_id == 1 and heard.mailbox.put(deltas(2)))
    await heard.begin()
    heard.mailbox.put(deltas(1))
    await turns()
    assert heard.steps == [[1], [2]]


@pytest.mark.promise("S5-456")
async def test_what_is_left_comes_before_the_end() -> None:
    heard = Heard()
    await heard.begin()
    heard.mailbox.put(deltas(1))
    heard.mailbox.close()
    heard.mailbox.put(deltas(2))
    await heard.end()
    assert heard.steps == [[1]]
    await heard.begin()  # and whoever comes later is told of the end as well
    await heard.end()


@pytest.mark.promise("S5-456")
async def test_what_is_left_comes_before_the_death() -> None:
    heard = Heard()
    await heard.begin()
    heard.mailbox.put(deltas(1))
    heard.mailbox.fail(EngineError("it burned"))
    with pytest.raises(EngineError, match="it burned"):
        await heard.end()
    assert heard.steps == [[1]]


async def test_the_end_waits_for_what_the_last_step_brings_about() -> None:
    def then(step: Step) -> None:
        if step[0].request_id == 1:
            heard.mailbox.put(deltas(2))
            heard.mailbox.close()

    heard = Heard(then)
    await heard.begin()
    heard.mailbox.put(deltas(1))
    await heard.end()
    assert heard.steps == [[1], [2]]


async def test_whoever_hands_on_is_told_what_the_taker_raised() -> None:
    def fail(step: Step) -> None:
        raise LookupError("no such leg")

    heard = Heard(fail)
    await heard.begin()
    heard.mailbox.put(deltas(1))
    with pytest.raises(LookupError):
        await heard.end()
    heard.mailbox.put(deltas(2))
    heard.mailbox.give()
    assert heard.steps == [[1]]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_taker_may_cancel_whoever_hands_on(fails: bool) -> None:
    def then(step: Step) -> None:
        assert heard.handing_on is not None
        heard.handing_on.cancel()
        if fails:
            raise LookupError

    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
    heard = Heard(then)
    await heard.begin()
    heard.mailbox.put(deltas(1))
    heard.mailbox.close()
    with pytest.raises(asyncio.CancelledError):
        await heard.end()
    assert broken == []


async def test_who_is_gone_is_given_nothing() -> None:
    heard = Heard()
    await heard.begin()
    assert heard.handing_on is not None
    heard.mailbox.put(deltas(1))
    heard.handing_on.cancel()
    heard.mailbox.put(deltas(2))
    heard.mailbox.give()
    await turns()
    assert heard.steps == []


async def test_it_is_drained_once_all_was_given() -> None:
    heard = Heard()
    async with asyncio.timeout(SECONDS):
        await heard.mailbox.drained()
    heard.mailbox.put(deltas(1))
    waiting = asyncio.create_task(heard.mailbox.drained())
    await turns()
    assert not waiting.done()
    await heard.begin()
    async with asyncio.timeout(SECONDS):
        await waiting
    assert heard.steps == [[1]]
