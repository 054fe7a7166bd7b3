"""What a hand-over asks of the memory that KV pages lie in, and which memory an engine has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tandem.v1 import kv_pb2
from tandem_sim.kv_transfer import nixl
from tandem_sim.kv_transfer.shared import SharedMemory


class Write(Protocol):
    """One transfer under way."""

    def settled(self) -> bool:
        """Whether all bytes lie in the peer's memory. Raises KvTransferError where they cannot."""
        ...

    def release(self) -> None:
        """Give up the transfer's resources, settled or not."""
        ...


class Peer(Protocol):
    """Another engine's memory, ready to be written to."""

    def write(self, pages: Sequence[int], remote_pages: Sequence[int]) -> Write:
        """Write whole pages: `pages[i]` becomes the peer's `remote_pages[i]`. Raises
        KvTransferError.
        """
        ...

    def close(self) -> None:
        """Disconnect. Raises KvTransferError."""
        ...


class Memory(Protocol):
    """A pool of equal pages: uint8, shape (page count, page_bytes)."""

    library: str
    """What moves the pages, as the metrics name it."""
    pages: Any

    def describe(self, *, token_bytes: int) -> kv_pb2.KvMemory:
        """What a writer must know of this memory."""
        ...

    def connect(self, remote: kv_pb2.KvMemory) -> Peer:
        """Prepare writes to a described memory. Raises KvTransferError."""
        ...

    def transport(self) -> str:
        """The transport of the writes so far, as UCX names it: "shm", "rdma"."""
        ...

    def progress(self) -> None:
        """Let writes by peers come in."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


def new_memory(*, name: str, page_count: int, page_bytes: int) -> Memory:
    """Memory for NIXL where NIXL is installed, else memory that engines of one machine share.
    `name` must differ from every other memory's. Raises StartError.
    """
    kind = nixl.NixlMemory if nixl.installed() else SharedMemory
    return kind(name=name, page_count=page_count, page_bytes=page_bytes)
