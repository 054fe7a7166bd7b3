"""Mooncake's transfer engine in place of NIXL: whether it is there, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.engine.ucx_log import UNKNOWN
from tandem.errors import StartError

NAME = "mooncake"
ENVIRONMENT = {
    "MC_LOG_LEVEL": "ERROR",
    # A decode engine to which one write has failed is written to no more until it answers again.
    # Without these probes nobody asks, and it is lost to prefill until either starts anew.
    "SGLANG_ENABLE_FAILED_SESSION_PROBE": "1",
}
"""What Mooncake reads, and SGLang for it."""
_DEVICES = Path("/sys/class/infiniband")
_TCP = "tcp"


def load() -> None:
    """Raises StartError where it cannot be loaded, before SGLang's processes fail for that."""
    try:
        import mooncake.engine  # noqa: F401
    except ImportError as error:
        raise StartError(
            f"Mooncake cannot be loaded ({error}): engine option transfer_backend=mooncake needs "
            "the package mooncake-transfer-engine, its build for this machine's CUDA or the one "
            "without, and libibverbs"
        ) from error


def wire(protocol: str, engine: Any) -> str:
    """What KV goes over, as UcxLog says it, where that is sure. Mooncake does not say: it takes TCP
    where it is told to, or finds no device for the protocol that it is asked for.

    `engine` is SGLang's MooncakeTransferEngine.
    """
    told = protocol == _TCP or engine.ib_device == ""  # by MC_FORCE_TCP
    return _TCP if told or not any(_DEVICES.glob("*")) else UNKNOWN
