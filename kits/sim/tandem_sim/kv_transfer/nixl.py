"""Registered memory and the WRITEs that move its pages to another process, over NIXL's UCX backend.

The only importer of NIXL. Its progress thread spins a whole core, so it is off, and each side moves
its own end along by asking: the writer in `NixlWrite.settled`, the target in `NixlMemory.progress`.
A target that is not progressed never sees a first connection, nor, over TCP, any byte. Everything
here is called from one thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tandem import config
from tandem.engine.ucx_log import ucx_log
from tandem.errors import KvTransferError, StartError
from tandem.v1 import kv_pb2

log = logging.getLogger(__name__)

MEMFD = b"memfd "
"""How the metadata of memory begin that is not NIXL's (shared.py)."""
_SEGMENT = "DRAM"
_BUILDS = ("nixl_cu13", "nixl_cu12")  # one source; they differ in CUDA, which is not used here


class NixlMemory:
    """See Memory. A pool of equal pages, registered with a NIXL agent of its own.

    `pages` is the memory itself: uint8, shape (page count, page_bytes). It is committed by the
    kernel page by page, on first use.
    """

    library = "nixl/ucx"

    def __init__(self, *, name: str, page_count: int, page_bytes: int) -> None:
        """`name` must differ from every other agent's. Raises StartError where NIXL cannot run."""
        self.name = name
        self._ucx_log = ucx_log()
        self.pages: Any = np.zeros((page_count, page_bytes), dtype=np.uint8)
        api, self.errors = _load()
        try:
            settings = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
            self.agent = api.nixl_agent(name, settings)
            region = [(self._address, self.pages.nbytes, 0, "")]
            self._registration = self.agent.register_memory(region, _SEGMENT)
            self.local = self.agent.prep_xfer_dlist("", self._strides(self._address), _SEGMENT)
            self._metadata: bytes = self.agent.get_agent_metadata()
        except self.errors as error:
            self._ucx_log.read()
            raise StartError(
                f"NIXL cannot start ({error}): check UCX_TLS and UCX_NET_DEVICES, or unset them"
            ) from error

    def describe(self, *, token_bytes: int) -> kv_pb2.KvMemory:
        count, page_bytes = self.pages.shape
        return kv_pb2.KvMemory(
            instance=self.name,
            agent_metadata=self._metadata,
            base_address=self._address,
            page_bytes=page_bytes,
            pages=count,
            token_bytes=token_bytes,
        )

    def connect(self, remote: kv_pb2.KvMemory) -> NixlPeer:
        """Prepare writes to a described memory with pages of this size. It may take 30 ms.

        Raises KvTransferError.
        """
        if remote.agent_metadata.startswith(MEMFD):
            raise KvTransferError(
                f"{remote.instance} has no NIXL, and this worker has:"
                " pip install 'tandem-serving[nixl]' for both workers"
            )
        try:
            name = self.agent.add_remote_agent(remote.agent_metadata).decode()
            strides = self._strides(remote.base_address, remote.pages)
            target = self.agent.prep_xfer_dlist(name, strides, _SEGMENT)
        except self.errors as error:
            raise KvTransferError(f"NIXL cannot reach {remote.instance}: {error}") from error
        return NixlPeer(self, target, name)

    def transport(self) -> str:
        """What pages of it were written over so far: see UcxLog."""
        return self._ucx_log.transport()

    def progress(self) -> None:
        """Let writes by peers come in. A few microseconds."""
        self.agent.get_new_notifs()

    def close(self) -> None:
        """Unregister. Peers must be closed before."""
        self.local.release()
        self.agent.deregister_memory(self._registration)
        self._ucx_log.read()

    @property
    def _address(self) -> int:
        return int(self.pages.ctypes.data)

    def _strides(self, base: int, count: int | None = None) -> Any:
        own_count, page_bytes = self.pages.shape
        row = [base, page_bytes, 0, page_bytes, own_count if count is None else count]
        return np.array([row], dtype=np.uint64)


class NixlPeer:
    """Another process's memory, ready to be written to."""

    def __init__(self, own: NixlMemory, target: Any, name: str) -> None:
        self._own = own
        self._target = target
        self._name = name

    def write(self, pages: Sequence[int], remote_pages: Sequence[int]) -> NixlWrite:
        """Start one transfer of whole pages: `pages[i]` becomes the peer's `remote_pages[i]`.

        Without pages it has settled at once. Raises KvTransferError.
        """
        own = self._own
        if not pages:
            return NixlWrite(own, None, "DONE")
        source = np.array(pages, dtype=np.int32)
        target = np.array(remote_pages, dtype=np.int32)
        try:
            handle = own.agent.make_prepped_xfer("WRITE", own.local, source, self._target, target)
            return NixlWrite(own, handle, own.agent.transfer(handle))
        except own.errors as error:
            raise KvTransferError(f"NIXL could not write: {error}") from error

    def close(self) -> None:
        """Disconnect. What was still being written may or may not arrive."""
        try:
            self._target.release()
            self._own.agent.remove_remote_agent(self._name)
        except self._own.errors as error:
            raise KvTransferError(f"NIXL could not disconnect: {error}") from error


class NixlWrite:
    """One transfer under way, and whether it has finished."""

    __slots__ = ("_handle", "_own", "_state")

    def __init__(self, own: NixlMemory, handle: Any, state: str) -> None:
        self._own = own
        self._handle = handle
        self._state = state

    def settled(self) -> bool:
        """Whether all bytes lie in the peer's memory; moves the transfer along.

        Raises KvTransferError where the peer or the connection is gone. Call `release` after it
        answered True or raised.
        """
        if self._state == "PROC":
            try:
                self._state = self._own.agent.check_xfer_state(self._handle)
            except self._own.errors as error:
                self._state = "ERR"
                raise KvTransferError(f"NIXL lost its peer: {error}") from error
        if self._state == "ERR":
            raise KvTransferError("NIXL failed to write")
        return bool(self._state == "DONE")

    def release(self) -> None:
        """Give up the transfer's resources. Unsettled, bytes may still reach the peer, until its
        connection is closed; so they may where NIXL cannot cancel it yet, which the log says.
        """
        if self._handle is None:
            return
        try:
            self._handle.release()
        except self._own.errors as error:
            # Nobody can do more, and other rooms wait behind this one.
            log.warning("a hand-over's write could not be cancelled", extra={"reason": str(error)})


def installed() -> bool:
    """Whether a build of NIXL is on this machine."""
    return any(importlib.util.find_spec(build) is not None for build in _BUILDS)


def _load() -> tuple[ModuleType, tuple[type[Exception], ...]]:
    """NIXL's Python interface and its exceptions, which have no base of their own."""
    # UCX warns on standard error about each interface it does not use.
    config.export({"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "WARN"})
    for build in _BUILDS:
        try:
            api = importlib.import_module(f"{build}._api")
        except ModuleNotFoundError as error:
            if error.name != build:
                raise StartError(f"NIXL is installed but broken: {error}") from error
            continue
        # It logs to standard output, where a program's own output belongs.
        logging.getLogger("nixl").setLevel(logging.WARNING)
        bindings = vars(importlib.import_module(f"{build}._bindings")).values()
        errors = [e for e in bindings if isinstance(e, type) and issubclass(e, Exception)]
        return api, (*errors, RuntimeError, KeyError)  # KeyError: no UCX backend in this build
    raise StartError("NIXL is not installed: pip install 'tandem-serving[nixl]'")
