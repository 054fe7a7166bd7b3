"""What travels between a worker and its hook processes may be of any size, and floods and forks
of a hook cost its own request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hook_rulings import Rulings, pool_processes, pooled, settings, until, work

from tandem.hooks.piece import Piece
from tandem.hooks.runner.processes import wire
from tandem.hooks.runner.processes.link import PoolLink
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import MAX_TEXT_CHARS
from tandem.pool.frames import Frames

MILLION = 1_000_000


@asynccontextmanager
async def _pool(
    name: str, *, workers: int = 1, memory_mb: int = 0, **entry: Any
) -> AsyncIterator[tuple[HookPool, Rulings]]:
    given = settings(name, workers=workers, memory_mb=memory_mb, **{"timeout_ms": 5000, **entry})
    async with pooled(given) as both:
        yield both


async def test_whole_answers_of_many_outputs_come_back_with_their_tokens() -> None:
    requests, outputs, tokens = 8, 8, 1500
    numbers = range(requests * outputs)
    async with _pool("WholeAnswer", workers=2) as (pool, rulings):
        for request in range(requests):
            rulings.open(*numbers[request * outputs : (request + 1) * outputs], group=request)
        last = tokens - 1
        for token in range(tokens):
            pool.submit([work(n, f" w{token}", token, final=token == last) for n in numbers])
            await rulings.until((token + 1) * len(numbers))
        assert pool.restarts == 0
    text = "".join(f" w{token}" for token in range(tokens))
    ends = [ruling.piece for ruling in rulings.all[-len(numbers) :]]
    extras = [f"logprob of {token}" for token in range(tokens)]
    assert all(end == Piece(text, tuple(range(tokens)), extras) for end in ends)


@pytest.mark.parametrize("count", [300_000, MAX_TEXT_CHARS])
async def test_a_long_text_arrives_whole_and_neighbours_do_not_notice(count: int) -> None:
    async with _pool("Long", max_added_chars=MAX_TEXT_CHARS) as (pool, rulings):
        rulings.open(1, 2)
        await rulings.ask([work(1, str(count)), work(2, "fine")])
        assert rulings.texts(1) == ["ö" * count]
        assert rulings.texts(2) == ["fine"]
        assert pool.restarts == 0


async def test_long_texts_of_one_step_come_in_several_messages_and_are_delivered_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest = 0

    def listen(link: PoolLink, data: bytes) -> None:
        for payload in frames.feed(data):
            nonlocal longest
            longest = max(longest, len(payload))
        heard(link, data)

    heard, frames = PoolLink.data_received, Frames(wire.MAX_MESSAGE_BYTES)
    monkeypatch.setattr(PoolLink, "data_received", listen)
    async with _pool("Long") as (pool, rulings):
        rulings.open(*range(32), group="n")
        await rulings.ask([work(n, "500000 end" if n == 31 else "500000") for n in range(32)])
        assert len(rulings.deliveries) == 1, "a terminate withholds what its siblings brought"
        assert rulings.all[-1].reason == "enough"
        assert longest < 2 * (MILLION + wire.REPLY_CHARS)
        assert pool.restarts == 0


async def test_what_came_of_a_reply_that_is_never_complete_is_shown_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = HookPool._on_reply

    def lose(pool: HookPool, link: PoolLink, reply: wire.Reply) -> int:
        answered = heard(pool, link, reply)
        if reply.more:
            link.lose("it was killed")
        return answered

    monkeypatch.setattr(HookPool, "_on_reply", lose)
    async with _pool("Long") as (_, rulings):
        rulings.open(1, 2, group="n")
        await rulings.ask([work(1, "500000", final=True), work(2, "500000")])
        assert [ruling.piece for ruling in rulings.all] == [None, None]
        assert all("lost" in str(ruling.error) for ruling in rulings.all)


@pytest.mark.promise("S6-173")
async def test_a_chunk_that_is_longer_than_any_costs_its_own_sequence() -> None:
    async with _pool("Upper") as (pool, rulings):
        rulings.open(1, 2)
        await rulings.ask([work(1, "a"), work(1, "x" * 17 * MILLION), work(2, "b")])
        assert [str(ruling.error) for ruling in rulings.of(1)] == [
            f"a chunk is longer than {MAX_TEXT_CHARS} characters"
        ] * 2
        await rulings.ask([work(2, "c", final=True)])
        assert rulings.texts(2) == ["B", "C"]
        assert (pool.restarts, pool.open_sequences) == (0, 0)
        await until(lambda: not any(link.owed for link in pool._keeper.processes))


def test_the_longest_verdict_fits_into_a_message() -> None:
    text = "\U0001f600" * MAX_TEXT_CHARS
    reply = wire.Reply([1], [wire.Changed(0, text, None, "r" * 1000)], [], 0)
    assert len(msgspec.msgpack.encode(reply)) < wire.MAX_MESSAGE_BYTES


@pytest.mark.promise("S6-173")
@pytest.mark.parametrize("how", ["flood", "flood with small things"])
async def test_a_flood_of_memory_that_ends_with_its_call_costs_its_own_request(how: str) -> None:
    """Which allocation fails follows from how much there is. Where it is one of the interpreter's,
    which cannot go on without, the process is lost: not with each of these amounts.
    """
    assert any([await _flood(how, memory_mb) for memory_mb in (192, 197, 202, 207)])


async def _flood(how: str, memory_mb: int) -> bool:
    """Whether the process outlives it."""
    async with _pool("Flooding", memory_mb=memory_mb, timeout_ms=20_000) as (pool, rulings):
        rulings.open(1, 2)
        flooded, fine = await rulings.ask([work(1, how), work(2, "a")])
        if str(flooded.error) == "the process that ran the output hooks was lost":
            return False
        # One of the hook's, or one of ours right behind it.
        assert str(flooded.error) in (
            "the output hook failed: MemoryError",
            "the output hooks broke",
        )
        assert fine.piece == work(2, "a").piece
        (later,) = await rulings.ask([work(2, "b")])
        assert later.piece == work(2, "b").piece
        assert pool.restarts == 0
        return True


@pytest.mark.parametrize("name", ["Forking", "AsyncForking"])
async def test_a_hook_that_forks_and_returns_twice_is_heard_once(name: str) -> None:
    async with _pool(name) as (pool, rulings):
        rulings.open(1, 2)
        await rulings.ask([work(1, "a"), work(2, "b")])
        await rulings.ask([work(1, "fork"), work(2, "c")])
        await rulings.ask([work(1, "d"), work(2, "e", final=True)])
        assert rulings.texts(1) == ["a", "fork", "d"]
        assert rulings.texts(2) == ["b", "c", "e"]
        assert pool.restarts == 0
        (process,) = pool_processes()
        await until(lambda: all(each.status() == "zombie" for each in process.children()))


async def test_a_hook_that_forks_when_it_is_built_starts_once() -> None:
    async with _pool("ForkingAtStart") as (pool, rulings):
        rulings.open(1)
        await rulings.ask([work(1, "a")])
        assert rulings.texts(1) == ["a"]
        assert (pool.restarts, pool.processes_up) == (0, 1)
