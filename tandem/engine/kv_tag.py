"""The tag that prefill sends behind the pages of a prompt's KV, and decode's check of the tag
before the first token leaves: what does not match is never answered from.

Every engine makes and compares its tags here. docs/design/0030-the-tag-of-a-hand-over.md says why a
tag that matches proves that the pages are those of this request.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import NamedTuple

import numpy

from tandem.errors import KvCorruptError
from tandem.little_endian import to_bytes
from tandem.v1 import common_pb2

_PACKED = struct.Struct("<8Q")
BYTES = _PACKED.size
"""The length of a packed tag."""
_REMEMBERED = 256
"""Names whose numbers are kept."""


class KvCheck(enum.StrEnum):
    """What decode compares of a hand-over: engine option `kv_check`, the same in both phases."""

    OFF = "off"
    """Nothing, for tests of what the check prevents."""
    TAG = "tag"
    """The tag."""
    BYTES = "bytes"
    """The tag, and in it a checksum of all bytes of the KV."""


class KvTag(NamedTuple):
    """Whose KV lies in the pages, and which pages they are. Each field is a number of 64 bits."""

    room: int
    """The hand-over's: random, and never used again."""
    prompt: int
    """From all tokens whose KV it is, in their order."""
    prompt_rest: int
    """Other bits of the same."""
    layout: int
    """From whatever says how the bytes lie in a page, and which model made them."""
    adapter: int
    """From the LoRA adapter's name; 0: the model alone."""
    salt: int
    """From the cache salt; 0: there is none."""
    pages: int
    """Which pages of decode, and of which allocation: a page that was freed and given away since is
    another.
    """
    contents: int
    """The checksum of the bytes under KvCheck.BYTES, else 0."""

    def packed(self) -> bytes:
        """The tag as it travels: its numbers, little-endian."""
        return _PACKED.pack(*self)


REFUSED = "the KV that has come is"
"""How the message of each refusal begins."""
_SAID = {
    "room": "of another hand-over",
    "prompt": "of another prompt",
    "prompt_rest": "of another prompt",
    "layout": "of another model or layout",
    "adapter": "of another LoRA adapter",
    "salt": "of another cache salt",
    "pages": "of an earlier use of the pages",
    "contents": "damaged, incomplete or not there",
}
"""What KV is whose tag differs in a field."""


def unpacked(data: bytes) -> KvTag | None:
    """The tag that `packed` wrote; None: there is none."""
    return KvTag(*_PACKED.unpack(data)) if len(data) == BYTES else None


def tag_of(
    *,
    room: int,
    tokens: Sequence[int],
    layout: int,
    adapter: str = "",
    salt: str = "",
    pages: int = 0,
    contents: int = 0,
) -> KvTag:
    """The tag of a hand-over of the KV of these tokens."""
    # SHA-256 in hardware is the fastest hash that there is, and NumPy reads arrays as they are.
    prompt = sha256(numpy.asarray(tokens).astype("<u4", copy=False).tobytes()).digest()
    return KvTag(
        room,
        int.from_bytes(prompt[:8], "little"),
        int.from_bytes(prompt[8:16], "little"),
        layout,
        number_of(adapter) if adapter else 0,
        number_of(salt) if salt else 0,
        pages,
        contents,
    )


def check(arrived: KvTag | None, expected: KvTag) -> None:
    """Raises KvCorruptError, which says what of the tag differs. None: no tag has come."""
    if arrived == expected:
        return
    if arrived is None:
        said = "without a tag"
    else:
        said = next(
            _SAID[name]
            for name, one, other in zip(KvTag._fields, arrived, expected, strict=True)
            if one != other
        )
    raise KvCorruptError(f"{REFUSED} {said}", phase=common_pb2.PHASE_DECODE)


@lru_cache(_REMEMBERED)
def number_of(*facts: object) -> int:
    """The number that stands for names, sizes or whatever else is said of KV; never 0."""
    said = "\0".join(map(str, facts)).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little") or 1


def number_of_pages(pages: Iterable[int]) -> int:
    """The number of an engine's pages by their places, in their order; never 0."""
    data = to_bytes(array("Q", pages))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") or 1
