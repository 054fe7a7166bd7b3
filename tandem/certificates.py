"""Certificate files that are replaced while a process uses them, and when they end.

Whoever renews them (cert-manager replaces the files of a Secret) tells nobody: who uses them asks
`current` at each handshake or dial.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.errors import ConfigError

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of change of each file; None: it is not there."""
_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL | re.ASCII)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


@dataclass(slots=True, frozen=True)
class LoadedCertificate:
    """What the files held at one moment, as PEM; `ca` is empty where none is used."""

    cert: bytes
    key: bytes
    ca: bytes
    context: ssl.SSLContext
    """Shows the certificate to clients; with a CA it demands one of theirs."""
    dialling: ssl.SSLContext
    """Shows it to servers, and believes what the CA has signed."""
    authorities: frozenset[bytes]
    """The certificates of `ca`, each as DER."""


class CertificateFiles:
    """A certificate with the chain below it, its key, and where it is used a bundle of CAs."""

    def __init__(self, *, cert: str, key: str, ca: str = "", protocols: Sequence[str] = ()) -> None:
        """`protocols`: what is spoken above TLS, by ALPN. Raises ConfigError where the files cannot
        be used.
        """
        self._cert, self._key, self._ca = cert, key, ca
        self._protocols = protocols
        self._stamp = self._look()
        self._loaded = self._read()

    def current(self) -> LoadedCertificate:
        """The files as they are now; while they cannot be used, as they last could be. Any thread
        may ask; the same object is answered until the files change."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._loaded = self._read()
                log.info("certificate renewed: %s", self._cert)
            except ConfigError as error:
                log.warning("certificate not renewed", extra={"reason": str(error)})
        return self._loaded

    def server_context(self) -> ssl.SSLContext:
        """A context for a server's lifetime: each handshake uses the files as they are then."""

        def choose(handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            handshake.context = self.current().context

        entry = self._context(ssl.PROTOCOL_TLS_SERVER)
        entry.sni_callback = choose  # called also where the client names no server
        return entry

    def _look(self) -> Stamp:
        return tuple(_look(path) for path in (self._cert, self._key, self._ca) if path)

    def _read(self) -> LoadedCertificate:
        """Raises ConfigError where they cannot be used, or are replaced meanwhile."""
        cert, key = _bytes(self._cert), _bytes(self._key)
        ca = _bytes(self._ca) if self._ca else b""
        server = self._context(ssl.PROTOCOL_TLS_SERVER)
        client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            self._load(context)
        if self._look() != self._stamp:
            raise ConfigError(f"{self._cert} was replaced while it was read")
        return LoadedCertificate(cert, key, ca, server, client, frozenset(_ders(ca)))

    def _context(self, kind: int) -> ssl.SSLContext:
        """Make one that has no certificate yet.

        Where both ends show certificates, no session is resumed: a resumed session skips the look
        at the certificate, so that one that has ended would go on opening connections. TLS 1.2
        resumes by an id that the server cannot switch off, so TLS 1.3 is the least.
        """
        context = ssl.SSLContext(kind)
        context.hostname_checks_common_name = False
        if self._ca:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.options |= ssl.OP_NO_TICKET
            if kind == ssl.PROTOCOL_TLS_SERVER:
                context.num_tickets = 0
            context.verify_mode = ssl.CERT_REQUIRED
            # A CA of our own may be signed by one that is not in the file.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self._protocols:
            context.set_alpn_protocols(list(self._protocols))
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        """Raises ConfigError."""
        try:
            # An empty password, lest OpenSSL ask a terminal for that of an encrypted key.
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(
                f"the certificate {self._cert} cannot be used with the key {self._key}: {error}"
            ) from error
        if self._ca:
            try:
                context.load_verify_locations(self._ca)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{self._ca} holds no usable CA: {error}") from error


class ExpiryCollector(Collector):
    """`tandem_tls_certificate_expiry_seconds`: what an alert compares with the time."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: paths by the setting that names them; an empty path is left out."""
        self._files = {name: path for name, path in files.items() if path}

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "tandem_tls_certificate_expiry_seconds",
            "Unix time at which the first of the file's certificates ends; 0: it is unreadable.",
            labels=["file"],
        )
        for name, path in self._files.items():
            family.add_metric([name], _expiry_or_zero(path))
        yield family


def _expiry_or_zero(path: str) -> float:
    try:
        return expiry(_bytes(path)).timestamp()
    except (ConfigError, ValueError):
        return 0.0


def expiry(pem: bytes) -> datetime:
    """When the first of these certificates ends. Raises ValueError where there is none."""
    ders = _ders(pem)
    if not ders:
        raise ValueError("the file holds no certificate")
    return min(map(not_after, ders))


def _ders(pem: bytes) -> list[bytes]:
    blocks = _BLOCK.findall(pem.decode("ascii", "replace"))
    return [ssl.PEM_cert_to_DER_cert(block) for block in blocks]


def not_after(der: bytes) -> datetime:
    """When a certificate ends. Raises ValueError for bytes that are none.

    RFC 5280, 4.1: Certificate holds TBSCertificate, which holds [version], serial number,
    algorithm, issuer and validity, which holds notBefore and notAfter.
    """
    certificate = _enter(der, _SEQUENCE)
    fields = list(_elements(_enter(certificate, _SEQUENCE)))
    if fields and fields[0][0] == _VERSION:
        del fields[0]
    _serial, _algorithm, _issuer, (_, validity), *_ = fields
    _not_before, (tag, text) = _elements(validity)
    if tag == _UTC_TIME:  # two digits of the year, which 2050 and later do not use
        text = (b"20" if text[:2] < b"50" else b"19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("the certificate's validity cannot be read")
    return datetime.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _enter(der: bytes, expected: int) -> bytes:
    """What the first element holds."""
    (tag, content), *_ = _elements(der)
    if tag != expected:
        raise ValueError("a block of the file is no certificate")
    return content


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each (X.690: a length above 127 says first how many bytes it takes)."""
    at = 0
    while at < len(der):
        if at + 2 > len(der):
            raise ValueError("the certificate is cut off")
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[at : at + size], "big")
            at += size
        yield tag, der[at : at + length]
        at += length


def _look(path: str) -> tuple[int, int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
