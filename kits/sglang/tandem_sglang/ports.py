"""The ports of this machine that an SGLang engine is given. By itself SGLang asks the system for
one, and listens seconds later on what another process may have got meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.free_ports import LOOPBACK, FreePorts

_HANDSHAKE, _INNER = 13, range(233, 240)
"""What SGLang adds to its port: DP_ATTENTION_HANDSHAKE_PORT_DELTA, and ZMQ_TCP_PORT_DELTA with what
follows it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """0 leaves a port to SGLang, as all of a follower's are."""

    bootstrap: int = 0
    """Where prefill begins hand-overs."""
    meeting: int = 0
    """Where ranks find each other, also a rank that is alone."""
    inner: int = 0
    """From which SGLang counts to those where the processes of data-parallel ranks meet: by default
    the same in each engine of a machine."""


def inner_port(free: FreePorts, host: str) -> int:
    """One to count from, as `Ports.inner` says. Raises StartError."""
    return free.port([(host, _HANDSHAKE), *((LOOPBACK, number) for number in _INNER)])
