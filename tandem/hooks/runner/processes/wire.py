"""What a worker and a process of its hook pool say to each other, over one Unix stream socket.

Each message is a frame of tandem/pool/frames.py with MessagePack in it. The worker speaks first:
ChainBoot, pickled because a hook's configuration may hold what YAML knows and MessagePack does not.
Then it sends a Batch for each step, and Replies come back; the end of its stream means: end in
order. The process says Started once, then Replies, and AllCounted about once a second.

Columns, not records: encoding and decoding a Batch of 32 tokens and its Reply takes 4.4 µs in all.
A Reply names only what a hook changed, so that a chunk which passes costs its request_id. One that
would be long is cut, so that the worker never reads much at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tandem.hooks.contract import Phase
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.settings import HookSettings
from tandem.logs import Format
from tandem.pool.boot import Boot, Loaded

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""More than the longest text of one verdict takes."""
REPLY_CHARS: Final = 256 * 1024
"""A Reply that has so much text is sent; what follows goes into another one."""


class ChainBoot(Boot, frozen=True, kw_only=True):
    """All a process must know to run the chain."""

    settings: HookSettings
    phase: Phase
    model: str
    component: str
    """For its logs."""
    log_format: Format
    log_level: str


class Batch(msgspec.Struct, array_like=True):
    """What is new for a process; to be read in this order."""

    opened: list[SequenceInfo] = []
    aborted: list[int] = []
    request_ids: list[int] = []
    """The Works; `texts` and `token_ids` are parallel."""
    texts: list[str] = []
    token_ids: list[tuple[int, ...]] = []
    finals: list[int] = []
    """Places of the final works."""


class Started(Loaded, frozen=True):
    """The chain can be run, or `error` says why not."""

    resumable: bool = False
    """Every hook of the process is resumable."""


class Changed(msgspec.Struct, array_like=True):
    """A Ruling that is not: show the chunk as it is."""

    place: int
    text: str | None
    """None: nothing is shown."""
    positions: list[int] | None
    """Which tokens are shown, counted over the sequence from 0; None: exactly this chunk's."""
    reason: str | None = None
    error: str | None = None


class Reply(msgspec.Struct, array_like=True, tag=True):
    """Rulings, in the order of their Works for each sequence."""

    request_ids: list[int] = []
    changed: list[Changed] = []
    """In the order of their places."""
    seconds: list[tuple[int, float]] = []
    """Place, and time spent in hooks by a sequence that is over with this Ruling."""
    aborts: int = 0
    """How many aborts were heard."""
    more: bool = False
    """More Replies follow that belong to this one: Rulings that were given together are delivered
    together (S0-029).
    """


class Counted(msgspec.Struct, array_like=True):
    """HookCounters, since the process began."""

    verdicts: list[int]
    """In the order of HOOK_VERDICTS."""
    seconds: list[int]
    """By the bounds of the histogram."""
    total_seconds: float
    held_tokens: int
    sequences: int


class AllCounted(msgspec.Struct, array_like=True, tag=True):
    """The counters of all hooks of the chain, as they travel."""

    hooks: list[Counted]


encode = msgspec.msgpack.Encoder().encode
batches = msgspec.msgpack.Decoder(Batch)
starts = msgspec.msgpack.Decoder(Started)
answers: msgspec.msgpack.Decoder[Reply | AllCounted] = msgspec.msgpack.Decoder(Reply | AllCounted)
