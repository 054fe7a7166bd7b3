"""What a worker and a process that compiles forms say to each other, over one Unix stream socket:
messages of tandem/pool/frames.py in MessagePack. The worker says CompilerBoot
and gets Loaded; then each Order gets its one answer before the next is sent.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.logits.forms.compiler import Kind
from tandem.pool.boot import Boot

PROGRAM: Final = "tandem.logits.forms.process"
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class CompilerBoot(Boot, frozen=True, kw_only=True):
    """All a process must know to compile."""

    compiler: str
    """The compiler's class, "module:Class"."""
    arguments: dict[str, Any]
    """Keyword arguments of the compiler's constructor."""
    cpu_seconds: int
    memory_bytes: int
    """What one form may take beside what the process has before it."""
    seconds: float
    """By the clock."""


class CompileOrder(msgspec.Struct, frozen=True):
    """A form that is to be compiled."""

    kind: Kind
    source: str


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """A form passed all limits."""

    compiled: bytes
    memory_bytes: int
    """Memory that compiling the form took, at least as much as its use takes."""
    shortest: int | None = None
    """As CompiledForm says."""


class Wrong(msgspec.Struct, frozen=True, tag=True):
    """A form has an error of its own."""

    message: str


class TooDear(msgspec.Struct, frozen=True, tag=True):
    """A form took more than it may."""

    message: str
    lasting: bool = True
    """False: on a machine that is less busy it may pass."""


Answer = Compiled | Wrong | TooDear
boots = msgspec.msgpack.Decoder(CompilerBoot)
orders = msgspec.msgpack.Decoder(CompileOrder)
answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
encoder = msgspec.msgpack.Encoder()
