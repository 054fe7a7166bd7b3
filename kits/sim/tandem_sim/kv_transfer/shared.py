"""Memory that engines of one machine map, where NIXL is not installed: a writer copies pages.

The memory is a file without a name in a file system (memfd), which ends with the last process that
has it. A writer reaches it by the owner's /proc/PID/fd, as the same user, and checks that it is the
memory that the owner described: whole, and of a size that nobody can change.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from tandem.errors import KvTransferError, StartError
from tandem.v1 import kv_pb2
from tandem_sim.kv_transfer.nixl import MEMFD

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A file that is cut while it is mapped would end the writer by SIGBUS."""
_PLACE: Final = re.compile(MEMFD + rb"([1-9][0-9]{0,9}) ([0-9]{1,9})")
"""The owner's process, and its number of the file."""
_NEEDS_NIXL: Final = "pip install 'tandem-serving[nixl]' for both workers"


class SharedMemory:
    """See Memory. A pool of equal pages in a file of memory, committed by the kernel page by page,
    on first use.
    """

    library = "memfd"

    def __init__(self, *, name: str, page_count: int, page_bytes: int) -> None:
        """`name` must differ from every other memory's. Raises StartError where the system gives no
        such file.
        """
        self._name = name
        try:
            with ExitStack() as opened:
                self._file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                opened.callback(os.close, self._file)
                os.ftruncate(self._file, page_count * page_bytes)
                fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
                self.pages = _mapped(self._file, page_count, page_bytes)
                opened.pop_all()
        except OSError as error:
            raise StartError(f"no memory for KV pages can be had: {error}") from error

    def describe(self, *, token_bytes: int) -> kv_pb2.KvMemory:
        count, page_bytes = self.pages.shape
        return kv_pb2.KvMemory(
            instance=self._name,
            agent_metadata=MEMFD + b"%d %d" % (os.getpid(), self._file),
            page_bytes=page_bytes,
            pages=count,
            token_bytes=token_bytes,
        )

    def connect(self, remote: kv_pb2.KvMemory) -> SharedPeer:
        """Map a described memory. Raises KvTransferError where it is not of this machine and user,
        or is for NIXL.
        """
        place = _PLACE.fullmatch(remote.agent_metadata)
        if place is None:
            raise KvTransferError(
                f"{remote.instance} takes KV over NIXL, which is not installed here: {_NEEDS_NIXL}"
            )
        try:
            target = _opened(f"/proc/{int(place[1])}/fd/{int(place[2])}", remote)
        except OSError as error:
            raise KvTransferError(
                f"the KV memory of {remote.instance} cannot be reached ({error.strerror}); between"
                f" machines, containers or users KV needs NIXL: {_NEEDS_NIXL}"
            ) from error
        return SharedPeer(self.pages, target)

    def transport(self) -> str:
        return "shm"

    def progress(self) -> None:
        """Do nothing: a page is there as soon as a writer has copied it."""

    def close(self) -> None:
        """Close the file. The memory goes with the last array that shows it."""
        os.close(self._file)


class SharedPeer:
    """Another process's memory, mapped."""

    def __init__(self, source: Any, target: Any) -> None:
        self._source = source
        self._target = target

    def write(self, pages: Sequence[int], remote_pages: Sequence[int]) -> SharedWrite:
        """Copy whole pages: `pages[i]` becomes the peer's `remote_pages[i]`. Raises
        KvTransferError for a page that one of the two does not have.
        """
        try:
            copied = self._source[np.array(pages, dtype=np.intp)]
            self._target[np.array(remote_pages, dtype=np.intp)] = copied
        except IndexError as error:
            raise KvTransferError(f"a KV page is outside the memory: {error}") from error
        return SharedWrite()

    def close(self) -> None:
        """Let go of the mapping."""
        del self._target


class SharedWrite:
    """A transfer that has settled."""

    def settled(self) -> bool:
        """All bytes lie in the peer's memory."""
        return True

    def release(self) -> None:
        """Nothing is held."""


def _opened(path: str, remote: kv_pb2.KvMemory) -> Any:
    """The pages of a described memory. Raises OSError, and KvTransferError for another file."""
    wanted = f"/memfd:{remote.instance} (deleted)"
    if os.readlink(path) != wanted:  # before it is opened: opening a device may do something
        raise KvTransferError(f"{path} is not the KV memory of {remote.instance}")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        whole = os.fstat(file).st_size == remote.pages * remote.page_bytes
        if not whole or fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise KvTransferError(f"the KV memory of {remote.instance} is not as it was described")
        return _mapped(file, remote.pages, remote.page_bytes)
    finally:
        os.close(file)


def _mapped(file: int, page_count: int, page_bytes: int) -> Any:
    return np.frombuffer(mmap.mmap(file, page_count * page_bytes), dtype=np.uint8).reshape(
        page_count, page_bytes
    )
