"""The seam for hooks whose verdict comes later: async ones, and those in other processes.

A worker hands over what a step brought (`submit`) and goes on; rulings come back through `deliver`,
on the event loop. Rules:

- Every Work is answered by exactly one Ruling, or its sequence was aborted meanwhile: then there
  may be none. Whatever happens (a hook that hangs, a process that dies), it comes in bounded time.
- Rulings of one sequence come in the order of its Works.
- The Works of one group (the n outputs of one request) that were submitted together are answered
  together, in one call of `deliver`: a terminate then withholds what its siblings brought (S0-029).
- After a Ruling with `error` or `reason` set nothing more of its sequence is judged, and its hooks
  have been told that it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tandem.errors import HookError
from tandem.hooks.piece import Piece


class SequenceInfo(Struct, frozen=True, kw_only=True, array_like=True):
    """The sequence that chunks belong to."""

    request_id: int
    group: Any
    """A hashable key that the n outputs of one request share; one place judges them all."""
    output_index: int
    streaming: bool
    trace_id: str
    tenant: str = ""
    """The name of the client's key; empty: no key was asked."""
    replayed: int = 0
    """How many of the first tokens the hooks of a lost worker have judged."""
    lora_adapter: str = ""


class Work(Struct):
    """One step's output of one sequence. The judge owns `piece` from now on."""

    request_id: int
    piece: Piece
    final: bool
    generated: int = 0
    """Tokens of the sequence that the engine has made, this piece's included."""


class Ruling(Struct):
    """The verdict on one Work."""

    request_id: int
    piece: Piece | None
    """What may be shown; None: nothing."""
    final: bool
    """`final` of the Work."""
    reason: str | None = None
    """A hook's terminate; `piece` is what may still be shown before it."""
    error: HookError | None = None
    """A hook failed closed; `piece` is None."""
    seconds: float = 0.0
    """Spent in the sequence's hooks so far; 0: not known. A pool says so with the last one."""
    generated: int = 0
    """`generated` of the Work."""


Deliver = Callable[[Sequence[Ruling]], None]


class DeferredHooks(Protocol):
    """Runs the chain somewhere. All methods are called on the event loop, and none waits, but
    `start` and `close`.
    """

    @property
    def resumable(self) -> bool:
        """Whether all hooks may be shown again what another worker's have judged; known once they
        were started.
        """
        ...

    async def start(self, deliver: Deliver) -> None:
        """Raises LoadError or StartError."""
        ...

    def open(self, info: SequenceInfo) -> None:
        """Take note that a sequence begins."""
        ...

    def submit(self, work: Sequence[Work]) -> None:
        """Take the pieces that one step brought for all sequences."""
        ...

    def abort(self, request_id: int) -> None:
        """The sequence is over without a final Work, or before its Rulings came: its hooks are told
        once, in order. Unknown: no effect.
        """
        ...

    async def close(self) -> None:
        """Abort what is open, shut the hooks down and free everything, in bounded time."""
        ...
