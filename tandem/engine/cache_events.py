"""What an engine publishes of its prefix cache, as blocks of Tandem's.

SGLang and vLLM publish over ZeroMQ alike which pages enter and leave the cache, by hashes of their
own, and with the tokens of those that enter. A page may be shorter than a block, or longer: a block
enters with the page that its last token is on, and leaves with it. A worker publishes its blocks in
the same messages (tandem/worker/kv_events.py).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tandem.engine.prefix_log import CachedTokens, Owner, PrefixLog
from tandem.prefix_blocks import BLOCK_TOKENS, following, root

log = logging.getLogger(__name__)
_DEVICE = (None, "GPU")
"""Engines call their KV cache so on CPUs too, and tell of pages in other memory."""
Page = bytes | int


class Stored(msgspec.Struct, tag="BlockStored"):
    """Pages that follow each other have entered."""

    block_hashes: list[Page]
    parent_block_hash: Page | None
    token_ids: list[int | tuple[int, int]]
    """Token ids of all the pages, each with the one behind it where SGLang drafts tokens."""
    block_size: int
    lora_id: int | None = None
    """vLLM's old name for `lora_name`; vLLM's readers refuse an event without the field."""
    medium: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    """What SGLang keeps the prompt's pages apart by."""
    extra_keys: list[list[Any] | None] | None = None
    """What vLLM keeps each page apart by: the adapter, and of a prompt's first page the salt."""


class Removed(msgspec.Struct, tag="BlockRemoved"):
    """Pages have left the cache."""

    block_hashes: list[Page]
    medium: str | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    """Nothing is left in the cache."""


class EventBatch(msgspec.Struct, array_like=True):
    """What is published at once."""

    at: float
    events: Sequence[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class _Place(NamedTuple):
    """Where in its prompt a page ends."""

    owner: Owner
    number: bytes
    """The number of the last whole block before this page."""
    last: int | None = None
    """The same as an integer; None: there is no such block."""
    rest: tuple[int, ...] = ()
    """Tokens behind that block, up to the page's end."""
    blocks: tuple[int, ...] = ()
    """Blocks that end on the page."""

    def then(self, tokens: Sequence[int]) -> _Place:
        """The end of the page that comes next, with these tokens."""
        number, rest, blocks = self.number, (*self.rest, *tokens), []
        while len(rest) >= BLOCK_TOKENS:
            number = following(number, rest[:BLOCK_TOKENS])
            rest = rest[BLOCK_TOKENS:]
            blocks.append(int.from_bytes(number, "little"))
        last = blocks[-1] if blocks else self.last
        return _Place(self.owner, number, last, rest, tuple(blocks))


class CacheEvents:
    """Reads what is published, and keeps a log of it."""

    def __init__(self, owner_of: Callable[[Stored], Owner]) -> None:
        """`owner_of`: the owner of the prompt whose first pages an event stores."""
        self.log = PrefixLog()
        self._owner_of = owner_of
        self._pages: dict[Page, _Place] = {}
        self._batches = msgspec.msgpack.Decoder(EventBatch)
        self._next: int | None = None

    def take(self, sequence: int, payload: bytes) -> None:
        """Take the batch of a number. Where a number is missing every known page is forgotten.
        Raises msgspec.MsgspecError.
        """
        if self._next is not None and sequence != self._next:
            log.warning("the engine's cache events have a gap: the cache's content is not known")
            self._forget()
        self._next = sequence + 1
        for event in self._batches.decode(payload).events:
            match event:
                case Stored():
                    self._stored(event)
                case Removed():
                    self._removed(event)
                case Cleared():
                    self._forget()

    def _stored(self, event: Stored) -> None:
        """What follows a page that nobody knows cannot be told."""
        parent = event.parent_block_hash
        if event.medium not in _DEVICE or (parent is not None and parent not in self._pages):
            return
        place = self._beginning(event) if parent is None else self._pages[parent]
        tokens = [each if isinstance(each, int) else each[0] for each in event.token_ids]
        for number, page in enumerate(event.block_hashes):
            begin, before = number * event.block_size, place
            own = tokens[begin : begin + event.block_size]
            place = self._pages[page] = before.then(own)
            if place.blocks:
                cached = CachedTokens((*before.rest, *own), before.last, place.owner)
                self.log.enter(place.blocks, cached)

    def _beginning(self, event: Stored) -> _Place:
        owner = self._owner_of(event)
        return _Place(owner, root(*owner))

    def _removed(self, event: Removed) -> None:
        if event.medium not in _DEVICE:
            return
        for page in event.block_hashes:
            if (place := self._pages.pop(page, None)) is not None:
                self.log.leave(place.blocks)

    def _forget(self) -> None:
        self._pages.clear()
        self.log.clear()


class CacheSubscription:
    """A socket of this process's own, on which the engine's process publishes."""

    def __init__(self, owner_of: Callable[[Stored], Owner]) -> None:
        """As CacheEvents."""
        self.events = CacheEvents(owner_of)
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-")
        self.endpoint = f"ipc://{Path(self._folder.name) / 'cache'}"

    async def follow(self) -> None:
        """Until cancelled, or until something cannot be read: then nothing is known."""
        try:
            import zmq  # comes with engines that publish
            import zmq.asyncio
        except ModuleNotFoundError:
            return  # the engine is not installed: its start says so

        socket: Any = zmq.asyncio.Context.instance().socket(zmq.SUB)
        try:
            socket.set_hwm(0)
            socket.subscribe(b"")
            socket.connect(self.endpoint)
            while True:
                _, sequence, payload = await socket.recv_multipart()
                self.events.take(int.from_bytes(sequence, "big"), payload)
        except (msgspec.MsgspecError, ValueError):
            log.exception("cache events cannot be read: the cache's content is not known")
            self.events.log.clear()
        finally:
            socket.close(linger=0)

    def close(self) -> None:
        """Call this when nobody follows any more."""
        self._folder.cleanup()
