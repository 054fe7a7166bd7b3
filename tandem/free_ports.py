"""Ports for servers that will listen on them seconds later, and may be started again."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from tandem.errors import StartError

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Systems give higher ones to outgoing connections."""


class FreePorts:
    """Ports that nobody has, each given once. Until `held` is closed they are kept from all who
    look for one as this does, in this process and in others, and from outgoing connections.
    """

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self._left = iter(random.sample(PORTS, len(PORTS)))

    def address(self) -> str:
        return f"{LOOPBACK}:{self.port()}"

    def port(self, needed: Iterable[tuple[str, int]] = ((LOOPBACK, 0),)) -> int:
        """One from which on those are free that `needed` says: an address of this machine, and how
        many above the port. Raises StartError where there is none, or the address is another's.
        """
        needed = tuple(needed)
        for port in self._left:
            with suppress(_TakenError), ExitStack() as bound:
                for host, number in needed:
                    bound.enter_context(_free(host, port + number))
                self._held.push(bound.pop_all())
                return port
        raise StartError(f"there are too few free ports from {min(PORTS)} to {max(PORTS)}")

    def wanted(self, host: str, port: int, *, setting: str) -> int:
        """`port`, held as `hold` does, or any free one where it is 0. Raises StartError, which
        names the setting.
        """
        if not port:
            return self.port([(host, 0)])
        try:
            self.hold(host, port)
        except OSError as error:
            raise StartError(
                f"cannot listen on {host}:{port} ({error.strerror}): set {setting} to a free port,"
                " and listen on an address of this machine"
            ) from error
        return port

    def hold(self, host: str, port: int) -> None:
        """Keep a port that is to be this one. Raises OSError where the address is not this
        machine's, or something listens there.
        """
        self._held.enter_context(_bound(host, port, again=True))


class _TakenError(Exception):
    """Somebody has the port, and the next one may be free."""


def _free(host: str, port: int) -> socket.socket:
    try:
        return _bound(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _TakenError from error
        raise StartError(
            f"cannot listen on {host} ({error.strerror}): it must be an address of this machine"
        ) from error


def _bound(host: str, port: int, *, again: bool = False) -> socket.socket:
    """Keeps a port from who looks for a free one, and not from its server: servers set
    SO_REUSEADDR, and may listen where somebody is bound who has set it too and does not listen.
    `again`: connections of one that listened there before may still be closing.

    Raises OSError where the port is taken, or the host is not this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    holder = socket.socket(family, kind, protocol)
    try:
        if again:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(address)
    except OSError:
        holder.close()
        raise
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder
