"""A subscriber to KV events, written from vLLM's description of them and not from Tandem's code.

The classes have the fields of vLLM 0.32's vllm/distributed/kv_events.py, and require those that
vLLM's require.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import zmq
import zmq.asyncio

PATIENCE = 30.0
END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Subscriber:
    """Keeps what it is told of one cache. `async with` opens and closes its socket."""

    def __init__(self, endpoint: str, replay_endpoint: str = "", *, hwm: int = 0) -> None:
        """`hwm`: most messages that wait to be read; 0: any number."""
        self.held: dict[bytes | int, tuple[bytes | int | None, tuple[int, ...]]] = {}
        """Of each block the one before it, and its tokens."""
        self.events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self.topics: set[bytes] = set()
        self.next = 0
        """The number of the message that should come."""
        self._endpoint, self._replay_endpoint, self._hwm = endpoint, replay_endpoint, hwm
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._socket: Any = None

    async def __aenter__(self) -> Subscriber:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        if self._hwm:
            self._socket.setsockopt(zmq.RCVHWM, self._hwm)
        self._socket.subscribe(b"")
        self._socket.connect(self._endpoint)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close(linger=0)

    async def read(self) -> bool:
        """Take one message. Whether it is the one that should come; one that is not is left."""
        parts = await asyncio.wait_for(self._socket.recv_multipart(), PATIENCE)
        topic, sequence, payload = parts
        self.topics.add(topic)
        number = int.from_bytes(sequence, "big")
        assert len(sequence) == 8
        if number == self.next:
            self._take(payload)
        return number < self.next

    async def read_until(self, blocks: set[int]) -> None:
        """Take messages until these blocks and no others are held."""
        while set(self.held) != blocks:
            assert await self.read(), f"a gap before {self.next}"

    async def ask_again(self) -> int:
        """Have all that was missed sent again. Returns how many messages that were."""
        socket: Any = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        count = 0
        try:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", self.next.to_bytes(8, "big")])
            while True:
                parts = await asyncio.wait_for(socket.recv_multipart(), PATIENCE)
                _, sequence, payload = parts
                if sequence == END:
                    assert payload == b""
                    return count
                assert int.from_bytes(sequence, "big") == self.next, "the replay has a gap"
                self._take(payload)
                count += 1
        finally:
            socket.close(linger=0)

    def _take(self, payload: bytes) -> None:
        self.next += 1
        for event in self._decoder.decode(payload).events:
            self.events.append(event)
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    assert event.medium == "GPU"
                    for each in event.block_hashes:
                        del self.held[each]
                case AllBlocksCleared():
                    self.held.clear()

    def _store(self, event: BlockStored) -> None:
        assert event.medium == "GPU"
        size, before = event.block_size, event.parent_block_hash
        assert before is None or before in self.held, "the block before it was told first"
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert event.extra_keys is None or len(event.extra_keys) == len(event.block_hashes)
        for place, each in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[place * size : (place + 1) * size])
            self.held[each] = (before, tokens)
            before = each
