"""What a worker publishes of its KV cache: real sockets, and a subscriber of vLLM's format."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from kv_event_subscriber import (
    END,
    PATIENCE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Subscriber,
)
from scripted_engine import ScriptedEngine

from tandem.engine.prefix_log import CachedTokens, Owner, PrefixLog
from tandem.errors import ConfigError, StartError
from tandem.prefix_blocks import BLOCK_TOKENS, Blocks, packed, unpacked
from tandem.worker import startup
from tandem.worker.config import WorkerConfig
from tandem.worker.kv_events import MOST_BLOCKS, KvEvents, parse
from tandem.worker.server import WorkerServer
from tandem_prefill_worker.rules import load_phase

TOPIC = "kv@worker@tiny"
PROMPT = [n % 251 for n in range(5 * BLOCK_TOKENS + 9)]


def blocks(tokens: Sequence[int], owner: Owner = Owner()) -> Blocks:  # noqa: B008
    return unpacked(packed(tokens, owner.cache_salt, owner.lora_adapter))


class Cache:
    """A log as an engine keeps it, and what publishes it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.endpoint = f"ipc://{folder / 'events'}"
        self.replay_endpoint = f"ipc://{folder / 'replay'}"
        given = {"endpoint": self.endpoint, "replay_endpoint": self.replay_endpoint, **settings}
        parsed = parse(given)
        assert parsed is not None
        self.log = PrefixLog()
        self.events = KvEvents(parsed, topic=TOPIC)

    def enter(self, tokens: Sequence[int], owner: Owner = Owner()) -> None:  # noqa: B008
        self.log.enter(blocks(tokens, owner), CachedTokens(tokens, None, owner))

    def subscriber(self, **how: int) -> Subscriber:
        return Subscriber(self.endpoint, self.replay_endpoint, **how)

    @property
    def held(self) -> set[int]:
        return set(self.log.held)

    async def known_to(self, subscriber: Subscriber) -> None:
        """Publish until a new subscriber gets messages: a socket tells nobody who has joined."""
        await subscribed(subscriber, self.log)
        await subscriber.ask_again()


async def subscribed(subscriber: Subscriber, log: PrefixLog) -> None:
    while not subscriber.topics:
        log.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(subscriber.read(), 0.05)


Opened = Callable[..., Awaitable[Cache]]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    caches: list[Cache] = []

    async def open_one(**settings: Any) -> Cache:
        cache = Cache(tmp_path, **settings)
        caches.append(cache)
        cache.events.open()
        cache.events.follow(cache.log)
        return cache

    yield open_one
    for each in caches:
        await each.events.close()


@pytest.mark.promise("S5-787")
async def test_a_subscriber_of_vllm_s_format_holds_what_the_cache_holds(opened: Opened) -> None:
    cache = await opened()
    async with cache.subscriber() as subscriber:
        await cache.known_to(subscriber)
        cache.enter(PROMPT)
        await subscriber.read_until(cache.held)
        mine = list(blocks(PROMPT))
        told = [(before, list(tokens)) for before, tokens in subscriber.held.values()]
        parts = [PROMPT[n * BLOCK_TOKENS :][:BLOCK_TOKENS] for n in range(5)]
        assert told == list(zip([None, *mine[:-1]], parts, strict=True))
        cache.enter([*PROMPT[: 3 * BLOCK_TOKENS], *[7] * BLOCK_TOKENS])
        await subscriber.read_until(cache.held)
        stored = [each for each in subscriber.events if isinstance(each, BlockStored)]
        assert stored[-1].parent_block_hash == mine[2], "goes on from a block that was told"
        assert stored[-1].block_hashes == [next(reversed(cache.log.held))]
        cache.log.leave(mine[3:])
        await subscriber.read_until(cache.held)
        assert isinstance(subscriber.events[-1], BlockRemoved)
        cache.log.clear()
        await subscriber.read_until(set())
        assert isinstance(subscriber.events[-1], AllBlocksCleared)
        assert subscriber.topics == {TOPIC.encode()}


@pytest.mark.promise("S5-787")
async def test_an_event_says_the_adapter_and_the_salt_as_vllm_does(opened: Opened) -> None:
    cache = await opened(topic="mine")
    async with cache.subscriber() as subscriber:
        await cache.known_to(subscriber)
        for owner in (Owner("acme", "poet"), Owner("acme"), Owner()):
            cache.enter(PROMPT[: 2 * BLOCK_TOKENS], owner)
        await subscriber.read_until(cache.held)
        stored = [each for each in subscriber.events if isinstance(each, BlockStored)][-3:]
        told = [(each.lora_name, each.extra_keys) for each in stored]
        assert told[0] == ("poet", [("poet", "acme"), ("poet",)])
        assert told[1:] == [(None, [("acme",), None]), (None, None)]
        assert subscriber.topics == {b"mine"}


@pytest.mark.promise("S5-787")
async def test_a_message_tells_of_a_bounded_number_of_blocks(opened: Opened) -> None:
    cache = await opened()
    many = [n % 97 for n in range(BLOCK_TOKENS * (2 * MOST_BLOCKS + 3))]
    async with cache.subscriber() as subscriber:
        await cache.known_to(subscriber)
        begun = subscriber.next
        cache.enter(many)
        await subscriber.read_until(cache.held)
        assert subscriber.next - begun == 3
        cache.log.leave(list(cache.log.held))
        await subscriber.read_until(set())
        assert subscriber.next - begun == 6


@pytest.mark.promise("S5-788")
async def test_what_was_missed_while_away_is_sent_again(opened: Opened) -> None:
    cache = await opened()
    async with cache.subscriber() as subscriber:
        await cache.known_to(subscriber)
        cache.enter(PROMPT)
        await subscriber.read_until(cache.held)
    for start in range(70, 170):  # more than a slice of a replay
        cache.enter([start] * BLOCK_TOKENS)
        await asyncio.sleep(0)
    cache.log.leave(list(blocks(PROMPT))[2:])
    await asyncio.sleep(0)
    assert await subscriber.ask_again() == 101
    assert set(subscriber.held) == cache.held
    assert await subscriber.ask_again() == 0
    late = cache.subscriber()
    await late.ask_again()
    assert late.held == subscriber.held, "who comes late is sent all from the first message on"


@pytest.mark.promise("S5-788")
async def test_of_more_than_is_kept_the_last_messages_are_sent_again(opened: Opened) -> None:
    cache = await opened(buffer_steps=3)
    for start in range(8):
        cache.enter([start] * BLOCK_TOKENS)
        await asyncio.sleep(0)
    late = cache.subscriber()
    with pytest.raises(AssertionError, match="the replay has a gap"):
        await late.ask_again()
    late.next = 5
    assert await late.ask_again() == 3
    assert list(late.held) == list(cache.log.held)[5:]


@pytest.mark.promise("S5-788")
async def test_a_subscriber_that_does_not_read_holds_up_nobody_and_misses_what_is_too_much(
    opened: Opened,
) -> None:
    """The kernel and ZeroMQ keep some for the slow one; the quick one gets every message."""
    cache = await opened(hwm=10, buffer_steps=5000)
    async with cache.subscriber(hwm=1) as slow, cache.subscriber() as quick:
        await cache.known_to(slow)
        await cache.known_to(quick)
        for start in range(150):
            cache.enter([start, *[start % 90 + 300] * (BLOCK_TOKENS * MOST_BLOCKS)])
            await asyncio.sleep(0)
            while set(quick.held) != cache.held:
                assert await quick.read()
        told = quick.next
        while await slow.read():
            assert slow.next < told, "it missed nothing"
            cache.enter([slow.next] * BLOCK_TOKENS)
            await asyncio.sleep(0)
        await slow.ask_again()
        assert set(slow.held) == cache.held


@pytest.mark.promise("S5-788")
@pytest.mark.parametrize("request_", [[b""], [b"", b"1"], [b"x", bytes(8)], [b"", bytes(8), b""]])
async def test_a_request_for_a_replay_that_is_none_ends_at_once(
    opened: Opened, request_: list[bytes]
) -> None:
    cache = await opened()
    cache.enter(PROMPT)
    await asyncio.sleep(0)
    socket: Any = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    try:
        socket.connect(cache.replay_endpoint)
        await socket.send_multipart(request_)
        reply = await asyncio.wait_for(socket.recv_multipart(), PATIENCE)
        assert reply == [b"", END, b""]
        await socket.send_multipart([b"", bytes(100_000)])  # ends that connection alone
        assert await cache.subscriber().ask_again() == 1
        assert not await socket.poll(200), "what is too large is not taken"
    finally:
        socket.close(linger=0)


async def test_without_a_replay_endpoint_there_is_none(opened: Opened, tmp_path: Path) -> None:
    await opened(replay_endpoint="")
    assert os.listdir(tmp_path) == ["events"]


# --- the start -----------------------------------------------------------------------------------


@pytest.mark.promise("S5-787")
def test_decode_publishes_nothing(model_path: Path) -> None:
    config = WorkerConfig(model_path=model_path, kv_events={"endpoint": "tcp://127.0.0.1:5557"})
    assert startup.kv_events_of("prefill", config) is not None
    assert startup.kv_events_of("decode", config) is None


@pytest.mark.promise("S5-789")
@pytest.mark.parametrize("log", [None, PrefixLog(keeps=False)])
def test_an_engine_that_tells_nothing_of_its_cache_ends_the_start(
    tmp_path: Path, log: PrefixLog | None
) -> None:
    with pytest.raises(StartError, match="kv_events is of no use: the engine has no prefix cache"):
        Cache(tmp_path).events.follow(log)


@pytest.mark.promise("S5-789")
async def test_an_address_that_cannot_be_had_ends_the_start_with_a_sentence(
    model_path: Path,
) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.bind_to_random_port('tcp://127.0.0.1')}"
        config = WorkerConfig(
            model_path=model_path,
            listen="127.0.0.1:0",
            metrics_listen="127.0.0.1:0",
            kv_events={"endpoint": endpoint},
        )
        worker = WorkerServer("prefill", config, load_phase, create=lambda *_: ScriptedEngine())
        said = f"kv_events: cannot listen at {endpoint}: Address already in use"
        with pytest.raises(StartError, match=said):
            await worker.start(asyncio.Event())
        await worker.close()


@pytest.mark.promise("S5-789")
def test_without_pyzmq_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.setitem(sys.modules, "zmq.asyncio", None)
    with pytest.raises(StartError, match=r"needs pyzmq: pip install 'tandem-serving\[kv-events\]'"):
        Cache(tmp_path)


@pytest.mark.promise("S5-789")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replay_endpoint": "tcp://*:5558"}, "missing required field `endpoint`"),
        ({"endpoint": "127.0.0.1:5557"}, r"kv_events\.endpoint: Expected `str` matching"),
        ({"endpoint": "tcp://*:1", "replay_endpoint": "1:1"}, r"kv_events\.replay_endpoint"),
        ({"endpoint": "tcp://*:1", "buffer_steps": 0}, r"kv_events\.buffer_steps"),
        ({"endpoint": "tcp://*:1", "hwm": 0}, r"kv_events\.hwm"),
        ({"endpoint": "tcp://*:1", "max_queue_size": 9}, "unknown field `max_queue_size`"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(
    model_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkerConfig(model_path=model_path, kv_events=given)
