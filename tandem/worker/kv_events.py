"""Which blocks of prompts a worker's KV cache holds, published over ZeroMQ in vLLM's format.

kv_events:
  endpoint: tcp://127.0.0.1:5557         # where subscribers connect; tcp://*:5557: on any network
  replay_endpoint: tcp://127.0.0.1:5558  # where they ask for messages that they missed; empty: none
  topic: ""            # the first frame of each message; empty: kv@NAME@MODEL, with the worker's
                       # name and the model's
  buffer_steps: 2000   # the last messages, kept for the replay
  hwm: 1000            # most messages that wait for a slow subscriber, which misses further ones

Whoever connects reads the tokens of every prompt: see docs/security.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tandem.engine.cache_events import Cleared, EventBatch, Removed, Stored
from tandem.engine.prefix_log import EnteredBlock, Owner, PrefixLog
from tandem.errors import StartError
from tandem.prefix_blocks import BLOCK_TOKENS
from tandem.settings_file import read_section
from tandem.tasks import Tasks

log = logging.getLogger(__name__)
MOST_BLOCKS = 64
"""A message tells of no more, so that the messages of a buffer are bounded in bytes, too."""
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""The sequence number that ends a replay, with an empty payload."""
_REPLAY_SLICE = 64
_REPLAY_PAUSE_SECONDS = 0.001
"""Between slices of a replay, so that whoever asks for one leaves most of the loop's time."""
_MEDIUM = "GPU"
"""The engine's KV cache, as engines call it on CPUs too."""
_LONGEST_REQUEST_BYTES = 1024
_KEEP_ALIVE_SECONDS = 60

_Endpoint = Annotated[str, Meta(pattern="^(tcp|ipc)://.+")]


class KvEventsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events are published. The names are those of vLLM's KVEventsConfig."""

    endpoint: _Endpoint
    replay_endpoint: Annotated[str, Meta(pattern="^$|^(tcp|ipc)://.+")] = ""
    topic: str = ""
    buffer_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 2000
    hwm: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000


def parse(given: Mapping[str, Any]) -> KvEventsSettings | None:
    """From the worker's settings: `kv_events` as above; None for an empty one.

    Raises ConfigError, naming the field.
    """
    return read_section(KvEventsSettings, "kv_events", given) if given else None


class KvEvents:
    """Watches the log of a prefix cache, and publishes what it is told.

    A message is the topic, a sequence number of 8 bytes from 0 on, the highest first, and an
    EventBatch as MessagePack. Nothing here waits for a subscriber.
    """

    def __init__(self, settings: KvEventsSettings, *, topic: str) -> None:
        """`topic`: where the settings have none. Raises StartError without pyzmq."""
        try:
            import zmq.asyncio  # comes with engines that publish, and not with the simulated one
        except ModuleNotFoundError:
            raise StartError(
                "the setting kv_events needs pyzmq: pip install 'tandem-serving[kv-events]'"
            ) from None
        self._zmq: Any = zmq
        self._settings = settings
        self._topic = (settings.topic or topic).encode()
        self._held = ExitStack()
        self._replays = Tasks()
        self._publisher: Any = None
        self._pending: list[Stored | Removed | Cleared] = []
        self._blocks = 0
        """In the pending events."""
        self._numbers = count()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=settings.buffer_steps)
        """Sequence number and payload of the last messages."""
        self._encode = msgspec.msgpack.Encoder().encode

    def open(self) -> None:
        """Listen. Raises StartError where an address cannot be had."""
        zmq, settings = self._zmq, self._settings
        self._publisher = self._bound(zmq.PUB, settings.endpoint, zmq.Context, settings.hwm)
        if settings.replay_endpoint:
            most = settings.buffer_steps + 1  # a whole replay, and its end
            socket = self._bound(zmq.ROUTER, settings.replay_endpoint, zmq.asyncio.Context, most)
            self._replays.start(self._answer(socket), name="kv events' replays")

    def follow(self, prefixes: PrefixLog | None) -> None:
        """Publish what enters and leaves from now on. Raises StartError for an engine that tells
        nothing of its cache.
        """
        if prefixes is None or not prefixes.keeps:
            raise StartError(
                "the setting kv_events is of no use: the engine has no prefix cache, or tells"
                " nothing of it; leave the setting empty, or see docs/kv-events.md"
            )
        prefixes.watcher = self
        log.info("publishing KV events", extra={"address": self._settings.endpoint})

    async def close(self) -> None:
        """Publish nothing more. May be called without `open`, and twice."""
        await self._replays.close()
        self._publisher = None
        self._held.close()

    # --- the log's watcher -----------------------------------------------------------------------

    def entered(self, block: EnteredBlock) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Stored) and last.block_hashes[-1] == block.after:
            last.block_hashes.append(block.number)
            last.token_ids.extend(block.token_ids)
            if last.extra_keys is not None:
                last.extra_keys.append(_extra_keys(block))
        else:
            keys = _extra_keys(block)
            stored = Stored(
                block_hashes=[block.number],
                parent_block_hash=block.after,
                token_ids=list(block.token_ids),
                block_size=BLOCK_TOKENS,
                medium=_MEDIUM,
                lora_name=block.owner.lora_adapter or None,
                extra_keys=None if block.owner == Owner() else [keys],
            )
            self._pending.append(stored)
        self._publish_soon()

    def left(self, number: int) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Removed):
            last.block_hashes.append(number)
        else:
            self._pending.append(Removed(block_hashes=[number], medium=_MEDIUM))
        self._publish_soon()

    def cleared(self) -> None:
        self._pending.append(Cleared())
        self._publish_soon()

    # --- the sockets -----------------------------------------------------------------------------

    def _publish_soon(self) -> None:
        """What one turn of the loop brings leaves together."""
        self._blocks += 1
        if self._blocks == 1:
            asyncio.get_running_loop().call_soon(self._publish)
        elif self._blocks % MOST_BLOCKS == 0:
            self._publish()

    def _publish(self) -> None:
        events, self._pending, self._blocks = self._pending, [], 0
        if not events or self._publisher is None:
            return
        number = next(self._numbers).to_bytes(8, "big")
        payload = self._encode(EventBatch(time.time(), events, 0))
        self._kept.append((number, payload))
        # A publisher's socket drops what a subscriber has no room for, and never waits.
        self._publisher.send_multipart((self._topic, number, payload), self._zmq.NOBLOCK)

    async def _answer(self, socket: Any) -> None:
        """Send again what subscribers ask for, to one after the other, until cancelled."""
        while True:
            who, *rest = await socket.recv_multipart()
            first = rest[1] if len(rest) == 2 and not rest[0] and len(rest[1]) == 8 else None
            kept = [] if first is None else [each for each in self._kept if each[0] >= first]
            for place, (number, payload) in enumerate(kept):
                if place % _REPLAY_SLICE == 0:
                    await asyncio.sleep(_REPLAY_PAUSE_SECONDS)
                await socket.send_multipart((who, b"", number, payload))
            await socket.send_multipart((who, b"", END_OF_REPLAY, b""))

    def _bound(self, kind: int, endpoint: str, context: Any, most_waiting: int) -> Any:
        zmq = self._zmq
        socket = context.instance().socket(kind)
        self._held.callback(socket.close, linger=0)
        socket.setsockopt(zmq.SNDHWM, most_waiting)
        socket.setsockopt(zmq.MAXMSGSIZE, _LONGEST_REQUEST_BYTES)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEP_ALIVE_SECONDS)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise StartError(
                f"the setting kv_events: cannot listen at {endpoint}: {error.strerror}"
            ) from error
        return socket


def _extra_keys(block: EnteredBlock) -> list[Any] | None:
    """As vLLM has them: the adapter, and of a prompt's first block the salt."""
    owner = block.owner
    keys = (owner.lora_adapter, owner.cache_salt if block.after is None else "")
    return [each for each in keys if each] or None
