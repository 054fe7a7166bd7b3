"""libfabric, over which NIXL moves KV in place of UCX where SGLang is told to."""

from __future__ import annotations

from tandem.engine.ucx_log import UNKNOWN

_WIRES = {
    **dict.fromkeys(("efa", "verbs", "cxi", "psm3"), "rdma"),
    **dict.fromkeys(("tcp", "sockets", "udp", "net"), "tcp"),
    "shm": "shm",
}


def wire(providers: str) -> str:
    """What KV goes over, as UcxLog says it, where FI_PROVIDER (`providers`) leaves libfabric no
    choice. NIXL's plugin says it nowhere.
    """
    names = [name.partition(";")[0].strip() for name in providers.lower().split(",")]
    found = {_WIRES.get(name, UNKNOWN) for name in names}
    return found.pop() if len(found) == 1 else UNKNOWN
