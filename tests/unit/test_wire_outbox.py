"""The self-clocking batcher."""

from __future__ import annotations

import asyncio

from tandem.wire.outbox import Outbox


class _Sender:
    """An owner with a draft of integers."""

    def __init__(self) -> None:
        self.draft: list[int] = []
        self.outbox: Outbox[list[int]] = Outbox(self._take)

    def _take(self) -> list[int] | None:
        taken, self.draft = self.draft, []
        return taken or None

    def add(self, *items: int) -> None:
        self.draft.extend(items)
        self.outbox.notify()


async def test_what_comes_during_a_write_leaves_as_one_message() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    sender.add(1)
    assert await anext(messages) == [1]
    sender.add(2)
    sender.add(3, 4)
    assert await anext(messages) == [2, 3, 4]


async def test_a_lone_item_leaves_at_once() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done()
    sender.add(1)
    assert await asyncio.wait_for(waiting, 1) == [1]


async def test_an_empty_draft_sends_nothing() -> None:
    sender = _Sender()
    messages = sender.outbox.messages()
    sender.outbox.notify()
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done()
    sender.add(5)
    assert await asyncio.wait_for(waiting, 1) == [5]


async def test_closing_sends_what_is_there_and_ends_the_stream() -> None:
    sender = _Sender()
    sender.add(1, 2)
    sender.outbox.close()
    assert [message async for message in sender.outbox.messages()] == [[1, 2]]


async def test_closing_an_empty_outbox_ends_the_stream() -> None:
    sender = _Sender()
    sender.outbox.close()
    assert [message async for message in sender.outbox.messages()] == []
