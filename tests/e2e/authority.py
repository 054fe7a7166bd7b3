"""Certificates for tests, made with the openssl command."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tandem.wire import tls

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True)
class Files:
    """Of one component: its certificate with the key, and the CA that it trusts."""

    cert: Path
    key: Path
    ca: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """What makes a component use mutual TLS."""
        return (f"--tls-cert={self.cert}", f"--tls-key={self.key}", f"--tls-ca={self.ca}")

    def replace_by(self, other: Files) -> None:
        """As a Secret's files are replaced: each name points to a new file, in one step."""
        for mine, theirs in ((self.cert, other.cert), (self.key, other.key), (self.ca, other.ca)):
            fresh = mine.with_suffix(".new")
            shutil.copyfile(theirs, fresh)
            os.replace(fresh, mine)


class Authority:
    """A CA of its own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._ca, self._ca_key = folder / "ca.crt", folder / "ca.key"
        self._count = 0
        _openssl(
            *("req", "-x509", *_KEY, "-keyout", self._ca_key, "-out", self._ca, "-days", "30"),
            *("-subj", f"/CN=CA of {folder.name}"),
        )

    def issue(self, *names: str, days: int = 1, alternative_names: tuple[str, ...] = ()) -> Files:
        """A certificate for these DNS names; without any, for every role. The first is its common
        name too. `alternative_names`: its DNS names instead of them.
        """
        names = names or tuple(tls.role_name(role, "tandem") for role in tls.ROLES)
        self._count += 1
        cert, key, request, extensions, ca = (
            self._folder / f"{self._count}.{suffix}"
            for suffix in ("crt", "key", "csr", "ext", "ca")
        )
        extensions.write_text(
            "subjectAltName=" + ",".join(f"DNS:{name}" for name in alternative_names or names)
        )
        shutil.copyfile(self._ca, ca)
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={names[0]}")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self._ca, "-CAkey", self._ca_key),
            *("-CAcreateserial", "-out", cert, "-days", str(days), "-extfile", extensions),
        )
        return Files(cert, key, ca)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)
