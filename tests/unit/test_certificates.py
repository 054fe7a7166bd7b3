"""Certificate files: what is refused, what a replacement does, and when they end."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from authority import Authority, Files

from tandem import certificates
from tandem.certificates import CertificateFiles, ExpiryCollector, expiry
from tandem.errors import ConfigError

DAY = 24 * 3600.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


def loaded(files: Files) -> CertificateFiles:
    return CertificateFiles(cert=str(files.cert), key=str(files.key), ca=str(files.ca))


def shown(context: ssl.SSLContext, *, name: str | None = None) -> bytes:
    """The certificate (DER) that a client is shown."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname=name)
    server = context.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return der


def der(files: Files) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.cert.read_text())


def test_a_replaced_certificate_is_used_from_the_next_handshake_on(authority: Authority) -> None:
    files, renewed = authority.issue(), authority.issue()
    watched = loaded(files)
    context = watched.server_context()
    assert shown(context) == shown(context, name="any.name") == der(files)
    before = watched.current()
    assert watched.current() is before
    files.replace_by(renewed)
    assert shown(context) == der(renewed)
    assert watched.current().key == renewed.key.read_bytes() != before.key


def test_files_that_do_not_belong_together_leave_the_last_good_ones_in_use(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files, renewed = authority.issue(), authority.issue()
    watched = loaded(files)
    good = watched.current()
    os.replace(renewed.cert, files.cert)  # and the key not yet
    assert watched.current() is good
    assert watched.current() is good
    assert [record.message for record in caplog.records] == ["certificate not renewed"]
    files.key.unlink()
    assert watched.current() is good
    os.replace(renewed.key, files.key)
    assert watched.current().cert != good.cert


def test_what_cannot_be_used_is_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.issue(), authority.issue()
    absent = tmp_path / "absent"
    with pytest.raises(ConfigError, match=f"{one.cert} cannot be used with the key {two.key}"):
        loaded(Files(one.cert, two.key, one.ca))
    with pytest.raises(ConfigError, match=f"cannot read {absent}: No such file"):
        loaded(Files(absent, one.key, one.ca))
    with pytest.raises(ConfigError, match=f"{one.key} holds no usable CA"):
        loaded(Files(one.cert, one.key, one.key))


def test_a_key_with_a_password_is_refused(authority: Authority) -> None:
    files = authority.issue()
    locked = files.key.with_suffix(".locked")
    subprocess.run(
        ["openssl", "ec", "-in", files.key, "-out", locked, "-aes256", "-passout", "pass:secret"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    with pytest.raises(ConfigError, match=f"the key {locked}"):
        loaded(Files(files.cert, locked, files.ca))


@pytest.mark.parametrize("days", [1, 365 * 40])  # the second has a year that takes four digits
def test_the_end_of_a_certificate_is_what_openssl_says(authority: Authority, days: int) -> None:
    files = authority.issue(days=days)
    said = subprocess.run(
        ["openssl", "x509", "-in", files.cert, "-noout", "-enddate"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    ends = ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))
    assert expiry(files.cert.read_bytes()).timestamp() == ends
    assert abs(ends - time.time() - days * DAY) < 60


def test_of_a_chain_the_first_end_counts_and_text_around_it_does_not(authority: Authority) -> None:
    late, soon = authority.issue(days=9), authority.issue(days=2)
    chain = b"Bag Attributes\n" + late.cert.read_bytes() + b"\n# issuer\n" + soon.cert.read_bytes()
    assert expiry(chain) == expiry(soon.cert.read_bytes())


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----"])
def test_what_is_no_certificate_is_no_end(content: bytes) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        expiry(content)


def test_damaged_certificates_raise_nothing_but_value_errors(authority: Authority) -> None:
    good = der(authority.issue())
    for cut in range(len(good)):
        for damaged in (good[:cut], good[:cut] + b"\xff" + good[cut + 1 :]):
            try:
                expiry(ssl.DER_cert_to_PEM_cert(damaged).encode())
            except ValueError:
                continue


def test_the_metric_names_the_setting_and_shows_an_unreadable_file_as_zero(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue()
    collector = ExpiryCollector(
        {"tls_cert": str(files.cert), "tls_ca": str(tmp_path / "absent"), "https_cert": ""}
    )
    (family,) = collector.collect()
    values = {sample.labels["file"]: sample.value for sample in family.samples}
    assert values == {"tls_cert": expiry(files.cert.read_bytes()).timestamp(), "tls_ca": 0}


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, second, third = (authority.issue() for _ in range(3))
    watched = loaded(files)
    first = watched.current()
    files.replace_by(second)
    read = certificates._bytes

    def replacing(path: str) -> bytes:
        monkeypatch.setattr(certificates, "_bytes", read)
        files.replace_by(third)
        return read(path)

    monkeypatch.setattr(certificates, "_bytes", replacing)
    assert watched.current() is first
    assert watched.current().cert == third.cert.read_bytes()
