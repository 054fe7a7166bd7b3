"""Ends connections whose peer's certificate would not be taken any longer.

A handshake looks at a certificate once, and a connection between components lives for weeks. So
each server and each channel looks at the certificates of its open connections again, once in
`LOOK_SECONDS`: a connection is closed whose peer's certificate has ended, or whose CA is not in the
file of CAs any longer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from tandem.certificates import not_after
from tandem.wire.tls import PeerTls
from tandem_loop_grpc.connection import PeerConnection
from tandem_loop_grpc.frames import Code

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
_CONNECTIONS_A_TURN: Final = 64
"""One turn of the loop looks at so many connections."""


class _End(Protocol):
    """A server or a channel."""

    @property
    def connections(self) -> Iterable[PeerConnection]: ...


def watch(end: _End, credentials: PeerTls) -> None:
    """Look at its connections from now on, for as long as it exists."""
    _later(weakref.ref(end), credentials)


def why_refused(chain: Sequence[bytes], authorities: frozenset[bytes], now: datetime) -> str:
    """Why a handshake would not take these certificates (DER, the peer's first) at this time; "":
    it would.
    """
    if not authorities.intersection(chain):
        return "the CA of the peer's certificate was replaced"
    if min(map(not_after, chain), default=now) <= now:
        return "the peer's certificate has ended"
    return ""


def verified_chain(security: ssl.SSLObject) -> list[bytes]:
    """The certificates that the handshake believed (DER): from the peer's to one of our file."""
    found: Any = security
    if not hasattr(found, "get_verified_chain"):
        found = found._sslobj  # before Python 3.13
    chain: list[Any] = found.get_verified_chain() or []
    return [each if isinstance(each, bytes) else _der(each) for each in chain]


def now() -> datetime:
    return datetime.now(UTC)


def _der(certificate: Any) -> bytes:
    pem: str = certificate.public_bytes()
    return ssl.PEM_cert_to_DER_cert(pem)


def _later(end: weakref.ref[_End], credentials: PeerTls) -> None:
    asyncio.get_running_loop().call_later(LOOK_SECONDS, _look, end, credentials)


def _look(end: weakref.ref[_End], credentials: PeerTls) -> None:
    found = end()
    if found is not None:
        _look_at(list(found.connections), credentials)
        _later(end, credentials)


def _look_at(connections: list[PeerConnection], credentials: PeerTls) -> None:
    authorities, at = credentials.authorities(), now()
    for connection in connections[:_CONNECTIONS_A_TURN]:
        security = None if connection.over else connection.security
        if security is None:
            continue
        if reason := why_refused(verified_chain(security), authorities, at):
            log.warning(
                "connection ended: its certificate is not good any longer",
                extra={"peer": str(connection.peername), "reason": reason},
            )
            connection.close(Code.NO_ERROR, reason)
    if rest := connections[_CONNECTIONS_A_TURN:]:
        asyncio.get_running_loop().call_soon(_look_at, rest, credentials)
