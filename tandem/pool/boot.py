"""What a process of a pool is told before its first order, and what it answers."""

from __future__ import annotations

import msgspec


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What a process must know before an order: users add to it."""

    name: str = ""
    """A boot takes the place of an earlier one of the same name."""
    import_path: list[str]
    """Where the parent finds modules."""


class Loaded(msgspec.Struct, frozen=True):
    """What a boot says can be done now, or `error` says why not."""

    error: str = ""


loads = msgspec.msgpack.Decoder(Loaded)
