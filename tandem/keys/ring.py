"""The keys that are good now, found by what a client gives."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

_PREFIX = "tandem-"
_BYTES = 32


def new_key() -> str:
    """256 random bits; people see by its beginning what it is."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(key: bytes) -> str:
    """What a key file holds of a key."""
    return hashlib.sha256(key).hexdigest()


class KeyRing:
    """From keys to the names of their holders. Takes as long whatever is given, and however many
    keys there are: places in it are chosen by a secret of this process, so that none can be aimed
    at.
    """

    def __init__(self, holders: Iterable[tuple[str, str]]) -> None:
        """`holders`: digests of keys, each with its holder's name."""
        self._secret = secrets.token_bytes(_BYTES)
        self._names = {self._place(digest): name for digest, name in holders}

    def find(self, key: bytes) -> str:
        """Empty: the key is nobody's."""
        return self._names.get(self._place(digest_of(key)), "")

    def _place(self, digest: str) -> bytes:
        return hmac.digest(self._secret, digest.encode(), "sha256")
