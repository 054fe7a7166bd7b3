"""What is to be called at a time, and rooms that have ended."""

from __future__ import annotations

import asyncio

import pytest

from tandem.engine import rooms
from tandem.engine.rooms import EndedRooms, KeyedTimers
from tandem.errors import TandemError


async def test_what_is_to_be_called_is_called_once_unless_it_is_stopped() -> None:
    timers: KeyedTimers[int] = KeyedTimers()
    called: asyncio.Queue[int] = asyncio.Queue()
    timers.set(1, 60.0, lambda: called.put_nowait(1))
    timers.set(2, 60.0, lambda: called.put_nowait(0))
    timers.set(2, 0.01, lambda: called.put_nowait(2))
    async with asyncio.timeout(5):
        assert await called.get() == 2
    assert list(timers) == [1]
    assert [timers.stop(each) for each in (2, 1, 1)] == [False, True, False]
    timers.set(3, 60.0, lambda: called.put_nowait(3))
    timers.set(4, 60.0, lambda: called.put_nowait(4))
    timers.call_all()
    assert (called.get_nowait(), called.get_nowait()) == (3, 4)
    timers.set(5, 0.0, lambda: called.put_nowait(5))
    timers.clear()
    await asyncio.sleep(0.01)
    assert called.empty()
    assert len(timers) == 0


async def test_rooms_that_ended_are_remembered_for_a_time_and_no_more_than_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rooms, "MOST_ROOMS", 2)
    ended, first = EndedRooms(0.05), TandemError("first")
    ended.add(1, first)
    ended.add(1, TandemError("second"))
    ended.add(2, first)
    ended.add(3, first)
    assert [ended.pop(each) for each in (1, 1, 3)] == [first, None, None]
    await asyncio.sleep(0.1)
    ended.add(3, first)
    assert [ended.pop(each) for each in (2, 3)] == [None, first]
