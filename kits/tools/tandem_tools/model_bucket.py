"""s3:// and gs:// : models in a bucket, of S3 or what speaks its protocol, or of Google's storage.

The `obstore` library does the work: it reads the clouds' own variables (AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, …), or asks the cloud for the pod's identity, and
tries again what may pass.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tandem import config
from tandem.errors import ConfigError
from tandem_tools.model_folder import FetchError, ModelFolder
from tandem_tools.model_sources import SourceFiles

SCHEMES = ("s3", "gs")
PART_BYTES = 16 << 20
"""What one request brings: it is tried again as a whole."""
FILES_AT_ONCE = 8


class Bucket:
    """A folder of a bucket. Its files have a version each, so that what is whole is known again."""

    def __init__(self, uri: str) -> None:
        """Raises ConfigError where the library is not installed."""
        try:
            import certifi
            import obstore
            from obstore import exceptions, store
        except ImportError as error:
            raise ConfigError(
                "fetching from s3:// or gs:// needs: pip install 'tandem-serving[bucket]'"
            ) from error
        self._uri = uri
        self._obstore = obstore
        # A file that is missing is Python's own FileNotFoundError.
        self._errors = (exceptions.BaseError, FileNotFoundError)
        # An image may have no authorities of its own.
        config.export({"SSL_CERT_FILE": certifi.where()})
        with self._told():
            self._store = store.from_url(uri)
        self._found: dict[str, Any] = {}

    def listing(self) -> SourceFiles:
        with self._told():
            objects = self._obstore.list_with_delimiter(self._store)["objects"]
        self._found = {each["path"]: each for each in objects}
        versions = sorted((name, each["e_tag"]) for name, each in self._found.items())
        digest = hashlib.sha256(repr(versions).encode()).hexdigest()
        return SourceFiles({name: each["size"] for name, each in self._found.items()}, digest)

    def bring(self, names: Collection[str], commit: str, folder: ModelFolder) -> None:
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            for _ in pool.map(lambda name: self._bring(name, folder), names):
                pass

    def _bring(self, name: str, folder: ModelFolder) -> None:
        size, version = self._found[name]["size"], self._found[name]["e_tag"]
        note = folder.work / f"{name}.version"
        if folder.has(name, size) and note.is_file() and note.read_text() == version:
            return
        partial = folder.work / f"{name}.{secrets.token_hex(4)}.incomplete"
        with partial.open("wb") as file:
            for part in self._parts(name, size, version):
                file.write(part)
        partial.replace(folder.path / name)
        note.write_text(version)

    def _parts(self, name: str, size: int, version: str) -> Iterator[Any]:
        for start in range(0, size, PART_BYTES):
            wanted = {"range": (start, min(start + PART_BYTES, size)), "if_match": version}
            with self._told():
                part = self._obstore.get(self._store, name, options=wanted).bytes()
            yield part

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the library raises, in words."""
        try:
            yield
        except self._errors as error:
            reason = str(error).partition("\n")[0]
            raise FetchError(
                f"{self._uri} cannot be read: {reason.rstrip(' :')}. Check its name, and whether"
                " the variables with its credentials, or the pod's account, may read it"
            ) from error
