"""Where torch's store listens, by which the ranks of one worker meet: left alone, on every network
of the machine, and SGLang has no setting for it.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

from torch.distributed import TCPStore

from tandem.sockets import is_loopback
from tandem_sglang.additions import Additions


def keep_local(_: Additions) -> None:
    """Have the stores that this process serves listen on loopback alone, where all ranks find it
    there.
    """
    # By its name: as an attribute of its package it is a function of this module.
    importlib.import_module("torch.distributed.rendezvous").TCPStore = _store  # type: ignore[attr-defined]


def _store(*, host_name: str, port: int, is_master: bool, **others: Any) -> TCPStore:
    if is_master and is_loopback(host_name):
        family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
        listener = socket.create_server((host_name, port), family=family)
        others["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host_name=host_name, port=port, is_master=is_master, **others)
