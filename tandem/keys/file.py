"""The file of keys: one JSON object a line, read again when it changes."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

import msgspec

from tandem.errors import ConfigError
from tandem.keys.grant import PLAIN_PREFIX, Grant

log = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
MAX_KEYS = 10_000

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change."""


class KeyFile:
    """The keys of a file as they last could be read."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError where it cannot be read, or holds no key."""
        self._path = Path(path)
        self._used = self._seen = self._stamp()
        self.grants = self._read()
        self.failures = 0
        """Times that the file was found changed and of no use."""
        self._failed = False
        if not self.grants:
            raise ConfigError(f"{path} holds no key: `tandem keys new NAME` makes one")

    @property
    def stale(self) -> bool:
        """The keys are not those of the file as it is: it is of no use, or has just changed."""
        return self._failed or self._seen != self._used

    def look(self) -> bool:
        """Read the file again once it has changed, and then stayed as it is from one look to the
        next: what is half written is nobody's keys. True: the keys are others now.

        A file that cannot be used changes nothing. One that holds no key revokes all of them.
        """
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._used:
            return False
        self._used = stamp
        try:
            grants = self._read()
        except ConfigError as error:
            self.failures += 1
            self._failed = True
            log.error("keys not read again", extra={"reason": str(error)})
            return False
        self._failed = False
        changed, self.grants = grants != self.grants, grants
        if changed:
            log.info("keys read again", extra={"count": len(grants)})
        return changed

    def _stamp(self) -> Stamp | None:
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns

    def _read(self) -> tuple[Grant, ...]:
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is no file")  # a pipe would be waited for
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
        if self._stamp() != self._used:
            raise ConfigError(f"{self._path} was replaced while it was read")
        return parse(content, str(self._path))


def parse(content: bytes, name: str) -> tuple[Grant, ...]:
    """The keys of a file's content; empty lines and those that begin with # are passed over.

    Raises ConfigError, naming the line; never what is in it, which may be a key.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{name} is larger than {MAX_BYTES} bytes")
    decoder = msgspec.json.Decoder(Grant)
    grants = []
    for number, line in enumerate(content.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            grants.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{name}, line {number}: {_reason(error)}") from None
    if len(grants) > MAX_KEYS:
        raise ConfigError(f"{name} holds {len(grants)} keys; {MAX_KEYS} are the most")
    if any(grant.name.startswith(PLAIN_PREFIX) for grant in grants):
        raise ConfigError(f"{name}: names that begin with {PLAIN_PREFIX} are not free")
    _check_unique([grant.name for grant in grants], name, "name")
    _check_unique([digest for grant in grants for digest in grant.digests], name, "sha256")
    return tuple(grants)


def _reason(error: Exception) -> str:
    """What is wrong, and where; without what was found there."""
    if not isinstance(error, msgspec.ValidationError):
        return "it is no JSON object"
    text = str(error)
    if "unknown field" in text:
        return f"a field is none of {', '.join(Grant.__struct_fields__)}"
    return text


def _check_unique(values: list[str], name: str, field: str) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ConfigError(f"{name}: {len(twice)} of its keys have another's {field}")
