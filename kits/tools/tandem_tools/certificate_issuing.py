"""A CA of Tandem's own and a certificate for each role: what is missing or near its end is made,
all else is kept. The routers' voucher key is made with them, once.

Everything is a function of what is held, the plan and the time. Renewal of the CA itself takes two
steps, so that no component meets a certificate of a CA that it has not been told of: a new CA is
trusted for `SETTLE` before it signs, and an old one is forgotten `SETTLE` after everything was
signed anew.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.wire.tls import ROLES, PeerRole, role_name

CA_FILE = "ca.crt"
AUTHORITIES_FILE = "authorities.pem"
"""Certificate and key of each CA, newest first. Whoever holds it can be any component."""
VOUCHER_FILE = "voucher.key"
"""What `voucher_key_file` of every router names (docs/executor/context-only.md)."""
VOUCHER_KEY_BYTES = 32
"""A router takes no key that has fewer."""
SETTLE = timedelta(days=1)
"""Longer than it takes until every component uses what was issued: a Secret's new content is in
every pod within some minutes."""
_SKEW = timedelta(minutes=5)
"""Clocks may differ by so much."""
_RENEW_AT = 1 / 3
"""The share of its life that a certificate has left when it is renewed."""
_BLOCKS = re.compile(b"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Names and lifetimes of the certificates to issue."""

    peer_name: str
    """The name below which they bear roles."""
    lifetime: timedelta
    authority_lifetime: timedelta


@dataclass(frozen=True, slots=True)
class Holding:
    """Authorities and certificates as they are kept: file name to content."""

    authorities: Mapping[str, bytes]
    """For whoever issues, and nobody else: AUTHORITIES_FILE."""
    certificates: Mapping[str, bytes]
    """CA_FILE for all, and `ROLE.crt` with `ROLE.key` for each role."""
    voucher: Mapping[str, bytes] | None = None
    """For routers alone: VOUCHER_FILE. None: it is not kept here."""


@dataclass(frozen=True, slots=True)
class Issued:
    holding: Holding
    changes: tuple[str, ...]
    """What was made or forgotten, and why, for people."""


@dataclass(frozen=True, slots=True)
class _Signed:
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.cert.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def fault(self, now: datetime) -> str:
        """Why it is not to be used any longer; empty: it is."""
        begin, end = self.cert.not_valid_before_utc, self.cert.not_valid_after_utc
        if now < begin:
            return "it is not valid yet"
        if end - now < (end - begin) * _RENEW_AT:
            return f"it ends on {end:%Y-%m-%d}"
        return ""


def issue(held: Holding, plan: Plan, now: datetime | None = None) -> Issued:
    """What is to be held from now on. The same mappings, and no changes, where all is good."""
    now = now or datetime.now(UTC)
    changes: list[str] = []
    authorities = _authorities(held, plan, now, changes)
    settled = [each for each in authorities if now - each.cert.not_valid_before_utc >= SETTLE]
    signer = (settled or authorities[-1:])[0]
    files = {CA_FILE: b"".join(each.pem for each in authorities)}
    for role in ROLES:
        found = _found(held.certificates, role)
        fault = "there was none" if found is None else _fault(found, signer, plan, role, now)
        if found is None or fault:
            found = _make_certificate(signer, plan, role, now)
            changes.append(f"{role}: new certificate: {fault}")
        files |= {f"{role}.crt": found.pem, f"{role}.key": found.key_pem}
    if not changes and held.certificates.get(CA_FILE) != files[CA_FILE]:
        changes.append(f"{CA_FILE}: written anew")
    secret = {AUTHORITIES_FILE: b"".join(each.pem + each.key_pem for each in authorities)}
    return Issued(Holding(secret, files, _voucher(held.voucher, changes)), tuple(changes))


def _voucher(held: Mapping[str, bytes] | None, changes: list[str]) -> Mapping[str, bytes] | None:
    """A key that a router can use is never replaced: what it signed would be refused."""
    if held is None or len(held.get(VOUCHER_FILE, b"").strip()) >= VOUCHER_KEY_BYTES:
        return held
    changes.append(f"{VOUCHER_FILE}: new key: there was none")
    return {VOUCHER_FILE: secrets.token_hex(VOUCHER_KEY_BYTES).encode()}


# --- authorities ----------------------------------------------------------------------------------


def _authorities(held: Holding, plan: Plan, now: datetime, changes: list[str]) -> list[_Signed]:
    """Newest first. What has ended, or is not needed any more, is left out."""
    found = [
        each
        for each in _read_authorities(held.authorities.get(AUTHORITIES_FILE, b""))
        if now < each.cert.not_valid_after_utc
    ]
    fault = found[0].fault(now) if found else "there was none"
    if fault:
        changes.append(f"new CA: {fault}")
        return [_make_authority(plan, now), *found]
    if len(found) > 1 and _all_settled(held, found[0], now):
        changes.append("the CA before it is not trusted any more")
        return found[:1]
    return found


def _all_settled(held: Holding, authority: _Signed, now: datetime) -> bool:
    """Whether every role has had a certificate of this CA for long enough to use it."""
    certificates = [_found(held.certificates, role) for role in ROLES]
    return all(
        each is not None
        and _is_signed(each.cert, authority)
        and now - each.cert.not_valid_before_utc >= SETTLE
        for each in certificates
    )


def _read_authorities(content: bytes) -> list[_Signed]:
    """Certificate and key in turn. Nothing where that cannot be read: others are made."""
    blocks = _BLOCKS.findall(content)
    found = [_read(cert, key) for cert, key in zip(blocks[::2], blocks[1::2], strict=False)]
    return [each for each in found if each is not None]


def _make_authority(plan: Plan, now: datetime) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    # The name tells two CAs apart while both are trusted.
    name = _name(f"Tandem CA {secrets.token_hex(4)}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, key, now, now + plan.authority_lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Signed(builder.sign(key, hashes.SHA256()), key)


# --- certificates ---------------------------------------------------------------------------------


def _fault(found: _Signed, signer: _Signed, plan: Plan, role: PeerRole, now: datetime) -> str:
    """Why a role's certificate is to be replaced; empty: it is not."""
    if _names(found.cert) != [role_name(role, plan.peer_name)]:
        return "it has another name"
    if not _is_signed(found.cert, signer):
        return "it is of another CA"
    return found.fault(now)


def _is_signed(cert: x509.Certificate, authority: _Signed) -> bool:
    try:
        cert.verify_directly_issued_by(authority.cert)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(cert: x509.Certificate) -> list[str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)


def _make_certificate(signer: _Signed, plan: Plan, role: PeerRole, now: datetime) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + plan.lifetime, signer.cert.not_valid_after_utc)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(role), signer.cert.subject, key, now, end)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(role_name(role, plan.peer_name))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()),
            critical=False,
        )
    )
    return _Signed(builder.sign(signer.key, hashes.SHA256()), key)


# --- both -----------------------------------------------------------------------------------------


def _found(files: Mapping[str, bytes], role: PeerRole) -> _Signed | None:
    return _read(files.get(f"{role}.crt", b""), files.get(f"{role}.key", b""))


def _read(cert: bytes, key: bytes) -> _Signed | None:
    """None where they cannot be read, or do not belong together."""
    try:
        found = x509.load_pem_x509_certificate(cert)
        secret = load_pem_private_key(key, password=None)
        if isinstance(secret, ec.EllipticCurvePrivateKey):
            same = found.public_key() == secret.public_key()
            return _Signed(found, secret) if same else None
    except (ValueError, TypeError):
        pass
    return None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(end)
    )


def _usage(**granted: bool) -> x509.KeyUsage:
    every: Iterator[str] = iter(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        )
    )
    return x509.KeyUsage(**{name: granted.get(name, False) for name in every})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
