"""Mutual TLS of the gRPC between components, and which of them may call which.

Every component shows one certificate, as a server and as a client, and trusts one CA for both. A
certificate bears its holder's role as a DNS name below `tls_peer_name`, such as `router.tandem`:
components are dialled by addresses that no certificate could know. Whoever dials asks for the role
that it means to reach; whoever is called looks for the role that may call it. Whoever can make the
CA sign is any component, so the CA is to be Tandem's own.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Literal, Protocol, get_args

from tandem.certificates import CertificateFiles
from tandem.errors import ConfigError

PeerRole = Literal["frontend", "router", "prefill", "decode", "worker"]
ROLES: tuple[PeerRole, ...] = get_args(PeerRole)


class TlsSettings(Protocol):
    """What the settings of every component hold, and those of an executor."""

    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...
    @property
    def tls_peer_name(self) -> str: ...


def check(settings: TlsSettings) -> None:
    """Raises ConfigError for settings that are neither mutual TLS nor plaintext."""
    given = (settings.tls_cert, settings.tls_key, settings.tls_ca)
    if any(given) and not all(given):
        raise ConfigError("tls_cert, tls_key and tls_ca are needed together, or none of them")
    if any(given) and not settings.tls_peer_name:
        raise ConfigError("tls_peer_name must not be empty beside tls_cert")


def files(settings: TlsSettings) -> Mapping[str, str]:
    """Setting and path of each certificate whose expiry is to be shown as a metric."""
    return {"tls_cert": settings.tls_cert, "tls_ca": settings.tls_ca}


def role_name(role: PeerRole, peer_name: str) -> str:
    """The DNS name that a component of this role has in its certificate."""
    return f"{role}.{peer_name}"


class PeerTls:
    """TLS credentials of one component, read again when its files change."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises ConfigError where the files cannot be used."""
        self._files = CertificateFiles(
            cert=settings.tls_cert,
            key=settings.tls_key,
            ca=settings.tls_ca,
            protocols=("h2",),
        )
        self._peer_name = settings.tls_peer_name

    @classmethod
    def of(cls, settings: TlsSettings) -> PeerTls | None:
        """The credentials of these settings, or None for plaintext. Raises ConfigError."""
        return cls(settings) if settings.tls_cert else None

    def name_of(self, role: PeerRole) -> str:
        """The name that a peer of this role must bear."""
        return role_name(role, self._peer_name)

    def client_context(self) -> ssl.SSLContext:
        """For one dial, with the files as they are now. It believes a server that bears the name
        that is asked for.
        """
        return self._files.current().dialling

    def authorities(self) -> frozenset[bytes]:
        """The CAs that are believed now, each as DER."""
        return self._files.current().authorities

    def server_context(self) -> ssl.SSLContext:
        """A context that follows the files, and demands a certificate of every client."""
        return self._files.server_context()
