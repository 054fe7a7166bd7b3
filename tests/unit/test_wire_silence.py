"""When a peer that says nothing is given up, and when it only was not listened to."""

from __future__ import annotations

import asyncio
import socket
import time
from math import inf

import pytest

from tandem.wire.silence import LOOKS, Silence


async def test_a_peer_that_says_nothing_is_given_up_after_its_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with Silence(0.2):
            await asyncio.sleep(60)
    assert loop.time() - began >= 0.2


async def test_a_peer_that_says_something_now_and_then_is_never_given_up() -> None:
    async with Silence(0.2) as listening:
        for _ in range(8):
            await asyncio.sleep(0.12)
            listening.heard = True


async def test_it_says_for_how_long_at_least_nothing_was_heard() -> None:
    async with Silence(10.0) as listening:
        assert listening.seconds == 0.0
        listening._look()
        assert listening.seconds == 0.0, "what was heard before the block counts"
        listening._look()
        listening._look()
        assert listening.seconds == 5.0
        listening.heard = True
        listening._look()
        assert listening.seconds == 0.0
    async with Silence(inf) as listening:
        assert listening.seconds == 0.0


@pytest.mark.parametrize("pauses", [1, 2, LOOKS - 1])
async def test_what_lay_in_the_socket_while_this_process_stood_still_counts(pauses: int) -> None:
    """The loop stands for longer than the bound, again and again. What the peer said meanwhile is
    read in the turns after it.
    """
    loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
    with here, there:
        here.setblocking(False)
        async with Silence(0.2) as listening:
            for _ in range(pauses):
                there.send(b"x")
                time.sleep(0.3)  # noqa: ASYNC251 - the whole process stands still
                assert await loop.sock_recv(here, 1) == b"x"
                listening.heard = True


async def test_a_pause_alone_is_no_silence() -> None:
    async with Silence(0.2):
        for _ in range(2):
            time.sleep(0.5)  # noqa: ASYNC251 - the whole process stands still
            await asyncio.sleep(0.01)


async def test_whoever_promises_nothing_may_say_nothing() -> None:
    async with Silence(inf):
        await asyncio.sleep(0.01)


async def test_nothing_is_left_behind() -> None:
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    async with Silence(0.05):
        pass
    await asyncio.sleep(0.3)
    assert not wrong, "a timer was left, and has nothing to end"
