"""Where CA, certificates and voucher key are kept: a folder, or Secrets of Kubernetes."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.errors import StartError
from tandem.wire.tls import ROLES
from tandem_tools.certificate_issuing import AUTHORITIES_FILE, CA_FILE, VOUCHER_FILE, Holding

if TYPE_CHECKING:
    from kubernetes.client import V1OwnerReference, V1Secret

CERTIFICATE_FILES = (CA_FILE, *(f"{role}.{end}" for role in ROLES for end in ("key", "crt")))
API_SECONDS = 20.0
_LABELS = {"app.kubernetes.io/managed-by": "tandem", "app.kubernetes.io/part-of": "tandem"}
"""Labels of Secrets that are made here. Not that of the release: a GitOps controller would prune
what bears it and is not rendered.
"""
_Data = dict[str, bytes | str]
"""Base64 by file."""
_NOT_FOUND = 404
_CONFLICT = 409


class StoreError(Exception):
    """The certificates could not be read or written; the message says what to do."""


class CertificateFolder:
    """Every file below one path, each replaced in one step; keys are for their owner alone. To read
    and to write raises StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Holding:
        try:
            return Holding(
                self._read(AUTHORITIES_FILE),
                self._read(*CERTIFICATE_FILES),
                self._read(VOUCHER_FILE),
            )
        except OSError as error:
            raise StoreError(f"cannot read {error.filename}: {error.strerror}") from error

    def write(self, holding: Holding) -> bool:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            files = {**holding.authorities, **holding.certificates, **(holding.voucher or {})}
            for name, content in files.items():
                self._replace(self._path / name, content)
        except OSError as error:
            raise StoreError(f"cannot write {error.filename}: {error.strerror}") from error
        return True

    def _read(self, *names: str) -> dict[str, bytes]:
        paths = {name: self._path / name for name in names}
        return {name: path.read_bytes() for name, path in paths.items() if path.exists()}

    def _replace(self, path: Path, content: bytes) -> None:
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        mode = 0o644 if path.suffix == ".crt" else 0o600
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(fresh, path)


class CertificateSecrets:
    """Three Secrets: the CA's, which no component mounts, that of the certificates and, where it
    is named, that of the voucher key. What is missing is made; nothing is listed or deleted.
    """

    def __init__(
        self,
        *,
        namespace: str,
        authorities: str,
        certificates: str,
        voucher: str = "",
        owner: str = "",
    ) -> None:
        """The names of the Secrets; without `voucher` the voucher key is not kept. `owner`: the
        ServiceAccount with which Kubernetes deletes the Secrets that are made here; without it they
        stay. Raises StartError where there is no cluster, or no library for it.
        """
        try:
            from kubernetes import client, config
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise StartError(
                "keeping certificates in Secrets needs: pip install 'tandem-serving[certificates]'"
            ) from error
        settings = client.Configuration()
        try:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except config.ConfigException as inside:
            try:
                config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            except config.ConfigException as outside:
                raise StartError(f"no cluster is known: {inside} {outside}") from outside
        self._api = client.CoreV1Api(client.ApiClient(settings))
        self._errors: tuple[type[Exception], ...] = (client.ApiException, HTTPError)
        self._namespace = namespace
        self._names = (authorities, certificates, *([voucher] if voucher else []))
        self._owner = owner
        self._found: tuple[V1Secret | None, ...] = ()

    def read(self) -> Holding:
        self._found = tuple(self._read(name) for name in self._names)
        return Holding(*map(_content, self._found))

    def write(self, holding: Holding) -> bool:
        """The CA's comes first: what it signed is never kept without it. False: another process has
        written since; nothing of it is lost.
        """
        contents = (holding.authorities, holding.certificates, holding.voucher or {})
        return all(
            self._write(name, found, content)
            for name, found, content in zip(self._names, self._found, contents, strict=False)
            if content != _content(found)
        )

    def _read(self, name: str) -> V1Secret | None:
        """The Secret of that name; None: the namespace has no such Secret."""
        try:
            return self._api.read_namespaced_secret(
                name, self._namespace, _request_timeout=API_SECONDS
            )
        except self._errors as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise self._failed("read", name, error) from error

    def _write(self, name: str, found: V1Secret | None, content: Mapping[str, bytes]) -> bool:
        """False where another has come since `found` was read: the API refuses this one then."""
        data: _Data = {key: base64.b64encode(value).decode() for key, value in content.items()}
        try:
            if found is None:
                self._make(name, data)
            else:
                found.data = data
                self._api.replace_namespaced_secret(
                    name, self._namespace, found, _request_timeout=API_SECONDS
                )
        except self._errors as error:
            if _status(error) == _CONFLICT:
                return False
            raise self._failed("write", name, error) from error
        return True

    def _make(self, name: str, data: _Data) -> None:
        from kubernetes.client import V1ObjectMeta, V1Secret

        owners = [self._read_owner()] if self._owner else None
        metadata = V1ObjectMeta(name=name, labels=_LABELS, owner_references=owners)
        self._api.create_namespaced_secret(
            self._namespace,
            V1Secret(metadata=metadata, data=data, type="Opaque"),
            _request_timeout=API_SECONDS,
        )

    def _read_owner(self) -> V1OwnerReference:
        from kubernetes.client import V1OwnerReference

        account = self._api.read_namespaced_service_account(
            self._owner, self._namespace, _request_timeout=API_SECONDS
        )
        uid = account.metadata.uid if account.metadata else None
        assert uid, "the API gives each object one"
        return V1OwnerReference(api_version="v1", kind="ServiceAccount", name=self._owner, uid=uid)

    def _failed(self, verb: str, name: str, error: Exception) -> StoreError:
        status = _status(error)
        hint = {
            403: ": the account's Role must let it get and update this Secret, create Secrets, and"
            " get the account itself",
            _NOT_FOUND: ": the namespace, or the ServiceAccount that is to own it, is not there",
        }.get(status, f": {error}")
        return StoreError(
            f"cannot {verb} Secret {self._namespace}/{name}"
            f"{f' (status {status})' if status else ''}{hint}"
        )


def _status(error: Exception) -> int:
    """The status of the API's answer; 0: there was none."""
    return getattr(error, "status", None) or 0


def _content(secret: V1Secret | None) -> dict[str, bytes]:
    data = (secret.data if secret else None) or {}
    return {key: base64.b64decode(value) for key, value in data.items()}
