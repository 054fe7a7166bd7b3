"""Which transport UCX writes KV over, by its own word.

UCX chooses a transport for each kind of connection, and tells it in its log alone: a table for each
operation that it is about to use, where UCX_PROTO_INFO asks for it. So its log is a file in this
process's memory, read when a hand-over has settled. Whatever else stands there goes on to standard
error.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys

from tandem import config

UNKNOWN = "unknown"
_OPERATIONS = "*put*multi*"
"""NIXL's writes. The others are UCX's own, and may go another way."""
_LINE = re.compile(r"\[\d+\.\d+\] \[[^\]]*\]\s+(?P<table>[|+].*[|+])")
_TRANSPORT = re.compile(r"([a-z0-9_]+)/[\w.:-]+")
"""With its device, as in "52% on tcp/lo and 48% on tcp/eth0"."""
_HOST_MEMORY = " from host memory "
_LARGEST = "..inf"
_MOST_BYTES = 2**20
"""Bytes of the read log that are kept."""
_INHERITED = r"/proc/\d+/fd/\d+"
"""The log of a process that has started this one."""
_SHARED_MEMORY = frozenset({"cma", "knem", "posix", "self", "sysv", "xpmem"})
_RDMA = ("dc_", "gga_", "rc_", "srd", "ud_")


class UcxLog:
    """The log of the UCX in this process, which must not be loaded yet.

    Where an operator has set UCX_LOG_FILE or UCX_PROTO_INFO, UCX goes by that, and what it wrote
    over may stay unknown.
    """

    def __init__(self) -> None:
        self._flush = ctypes.CDLL(None).fflush
        """UCX's file has a buffer, in the C library."""
        self._file = os.memfd_create("ucx-log")
        self._rest = b""
        self._operation = ""
        self._host: set[str] = set()
        self._device: set[str] = set()
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        variables = {"UCX_LOG_FILE": path, "UCX_PROTO_INFO": _OPERATIONS}
        config.export(variables, inherited=_INHERITED)

    def transport(self) -> str:
        """What KV was written over: "shm", "rdma", "tcp", "cuda_ipc" or another name of UCX's;
        several, where it differs by connection or one is shared, as "rdma+tcp"; else "unknown".
        """
        self.read()
        # Beside KV in device memory a few words of host memory travel.
        return "+".join(sorted(self._device or self._host)) or UNKNOWN

    def read(self) -> None:
        """Take in what was written since, and pass on what is not about writes."""
        self._flush(None)
        chunk = os.read(self._file, 65536)
        if not chunk:
            return
        while chunk:
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(line.lstrip(b"\0").decode(errors="replace"))
            chunk = os.read(self._file, 65536)
        if os.fstat(self._file).st_blocks * 512 > _MOST_BYTES:
            os.truncate(self._file, 0)  # UCX goes on where it was, behind a hole

    def _take(self, line: str) -> None:
        table = _LINE.fullmatch(line)
        if table is None:
            sys.stderr.write(f"{line}\n")
            return
        if table["table"].startswith("+"):
            return  # between its rows
        cells = [cell.strip() for cell in table["table"].strip("|").split("|")]
        if len(cells) == 1:
            self._operation = cells[0]
        elif "ucp_put" in self._operation and cells[0].endswith(_LARGEST):
            found = self._host if _HOST_MEMORY in self._operation else self._device
            found.update(kind(each) for each in _TRANSPORT.findall(cells[-1]))


@functools.cache
def ucx_log() -> UcxLog:
    """The UCX log of this process. Call this function before NIXL is loaded."""
    return UcxLog()


def kind(transport: str) -> str:
    """The kind of a UCX transport: "rdma" for "rc_mlx5"."""
    if transport in _SHARED_MEMORY:
        return "shm"
    return "rdma" if transport.startswith(_RDMA) else transport
