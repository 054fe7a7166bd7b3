"""What vLLM says of its prefix cache, as blocks of Tandem's.

vLLM publishes over ZeroMQ which pages enter and leave its cache, by hashes of its own, and with the
tokens and the salt of those that enter. A page may be shorter than a block, or longer: a block
enters with the page that its last token is on, and leaves with it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import BLOCK_TOKENS, following, root

log = logging.getLogger(__name__)
_DEVICE = (None, "GPU")
"""vLLM calls its KV cache so on CPUs too, and tells of other tiers."""
Page = bytes | int


class Stored(msgspec.Struct, tag="BlockStored"):
    """Pages that follow each other have entered."""

    block_hashes: list[Page]
    parent_block_hash: Page | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """What each page is kept apart by; a prompt's first page has the salt."""


class Removed(msgspec.Struct, tag="BlockRemoved"):
    """Pages have left the cache."""

    block_hashes: list[Page]
    medium: str | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    """Nothing is left in the cache."""


class EventBatch(msgspec.Struct, array_like=True):
    """What is published at once."""

    at: float
    events: list[Stored | Removed | Cleared]


class _Place(NamedTuple):
    """Where in its prompt a page ends."""

    number: bytes
    """The number of the last whole block before this page."""
    rest: tuple[int, ...]
    """Tokens behind that block, up to the page's end."""
    blocks: tuple[int, ...]
    """Blocks that end on the page."""

    def then(self, tokens: Sequence[int]) -> _Place:
        """The end of the page that comes next, with these tokens."""
        number, rest, blocks = self.number, (*self.rest, *tokens), []
        while len(rest) >= BLOCK_TOKENS:
            number = following(number, rest[:BLOCK_TOKENS])
            rest = rest[BLOCK_TOKENS:]
            blocks.append(int.from_bytes(number, "little"))
        return _Place(number, rest, tuple(blocks))


def _root(event: Stored) -> bytes:
    """What stands before the blocks of a prompt whose first pages these are."""
    keys = (event.extra_keys or [None])[0] or ()
    cache_salt = next((each for each in keys if isinstance(each, str)), "")
    return root(cache_salt, lora_adapter="")


class CacheEvents:
    """Reads what is published, and keeps a log of it."""

    def __init__(self) -> None:
        self.log = PrefixLog()
        self._pages: dict[Page, _Place] = {}
        self._batches = msgspec.msgpack.Decoder(EventBatch)
        self._next: int | None = None

    def take(self, sequence: int, payload: bytes) -> None:
        """Take the batch of a number. Where a number is missing every known page is forgotten.
        Raises msgspec.MsgspecError.
        """
        if self._next is not None and sequence != self._next:
            log.warning("vLLM's cache events have a gap: the cache's content is not known")
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
        place = _Place(_root(event), (), ()) if parent is None else self._pages[parent]
        for number, page in enumerate(event.block_hashes):
            begin = number * event.block_size
            place = place.then(event.token_ids[begin : begin + event.block_size])
            self._pages[page] = place
            self.log.enter(place.blocks)

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
    """A socket of this process's own, on which vLLM's process publishes."""

    def __init__(self) -> None:
        self.events = CacheEvents()
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-")
        self._endpoint = f"ipc://{Path(self._folder.name) / 'cache'}"

    @property
    def config(self) -> dict[str, Any]:
        """The kv_events_config that vLLM is given."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": None,
        }

    async def follow(self) -> None:
        """Until cancelled, or until something cannot be read: then nothing is known."""
        import zmq  # comes with vLLM
        import zmq.asyncio

        socket: Any = zmq.asyncio.Context.instance().socket(zmq.SUB)
        try:
            socket.set_hwm(0)
            socket.subscribe(b"")
            socket.connect(self._endpoint)
            while True:
                _, sequence, payload = await socket.recv_multipart()
                self.events.take(int.from_bytes(sequence, "big"), payload)
        except (msgspec.MsgspecError, ValueError):
            log.exception("vLLM's cache events cannot be read: the cache's content is not known")
            self.events.log.clear()
        finally:
            socket.close(linger=0)

    def close(self) -> None:
        """Call this when nobody follows any more."""
        self._folder.cleanup()
