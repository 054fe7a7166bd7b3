"""The file of keys: one JSON object a line, read again when it changes."""

from __future__ import annotations

from collections import Counter

import msgspec

from tandem.errors import ConfigError
from tandem.keys import MAX_NAME
from tandem.keys.grant import PLAIN_PREFIX, Grant
from tandem.watched_file import WatchedFile

MAX_BYTES = 8 * 1024 * 1024
MAX_KEYS = 10_000


class KeyFile(WatchedFile[tuple[Grant, ...]]):
    """The keys of a file as they last could be read. One that comes to hold no key revokes all."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError where it cannot be read, or holds no key."""
        super().__init__(
            path,
            parse,
            max_bytes=MAX_BYTES,
            on_changed="keys read again",
            on_failed="keys not read again",
        )
        if not self.content:
            raise ConfigError(f"{path} holds no key: `tandem keys new NAME` makes one")


_FORMS = {
    "name": f"letters, digits, `.`, `_` and `-`, at most {MAX_NAME}, a letter or digit first",
    "sha256": "64 lower-case hexadecimal digits",
}
"""What a field takes, where a regular expression says it."""


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
    """The fault of a keys file and its place, without the file's text."""
    if not isinstance(error, msgspec.ValidationError):
        return "it is no JSON object"
    what, _, place = str(error).removesuffix("`").partition(" - at `$.")
    if "unknown field" in what:
        return f"a field is none of {', '.join(Grant.__struct_fields__)}"
    if "matching regex" in what:
        what = _FORMS[place.partition("[")[0]]
    return f"{place}: {what}" if place else what


def _check_unique(values: list[str], name: str, field: str) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ConfigError(f"{name}: {len(twice)} of its keys have another's {field}")
