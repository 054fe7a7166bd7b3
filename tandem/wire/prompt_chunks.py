"""A prompt travels once: what a stream's earlier prompts began with is named, and not sent again.

A prompt's token ids are cut into chunks of 1,024. A chunk's name is a hash of all tokens up to the
chunk's end, under the salt that caches know the prompt by: how fast a prompt travels tells no
client what clients of other keys sent. The reader of a stream keeps the chunks that came by the
stream, and the writer keeps their names. Both take the same steps in the same order, message by
message, and forget the chunks that were used least recently; so the writer knows which chunks the
reader has, and nobody has to ask. A stream that breaks takes all of this with it: the next one
begins with whole prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.little_endian import TOKEN_ID_BYTES
from tandem.message_limits import MAX_REQUEST_MESSAGE_BYTES
from tandem.metrics import counter, gauge
from tandem.v1 import common_pb2
from tandem.wire.fields import places
from tandem.wire.frames import head, write_varint

CHUNK_TOKENS: Final = 1024
"""Part of the wire: both ends of a stream must agree."""
DEFAULT_MB: Final = 256
STREAM_BYTES: Final = 64 * 2**20
"""The most that is kept for one stream: 16 million tokens, more than the KV caches behind it."""
NAME_BYTES: Final = 16
_PROMPT: Final = common_pb2.Task.PROMPT_TOKEN_IDS_FIELD_NUMBER
_SALT: Final = common_pb2.Task.CACHE_SALT_FIELD_NUMBER
_TOKEN_IDS: Final = head(common_pb2.Task, "prompt_token_ids")
_FIELDS: Final = 1024
"""Fields of a task that are looked at for its prompt."""

Names = tuple[bytes, ...]
"""The names of a prompt's whole chunks, from the prompt's start on."""
Kept = TypeVar("Kept")


class Carrier(Protocol):
    """A message with a task: Submit, StartLeg or KeptTask."""

    task: bytes
    """A serialised Task, which has of its prompt what follows the known chunks."""
    known_prompt: bytes
    """The name of the last chunk that stands before; empty: the task has its whole prompt."""


class PromptChunk(NamedTuple):
    """What a reader keeps by a chunk's name."""

    before: bytes
    """The name of the chunk before; empty: a prompt begins with this one."""
    token_ids: bytes


def chunk_bytes() -> int:
    """The size of a chunk's token ids."""
    return CHUNK_TOKENS * TOKEN_ID_BYTES


class ChunkRoom:
    """The memory that a process has for chunks, which its streams take parts of."""

    def __init__(self, most_bytes: int) -> None:
        self._free = most_bytes // chunk_bytes()
        self.chunks = 0
        """How many are kept now."""
        self.known_tokens = 0
        """How many tokens of prompts were known so far."""

    def take(self) -> int:
        """How many chunks a new stream may keep; 0 where other streams have the room."""
        taken = min(self._free, STREAM_BYTES // chunk_bytes())
        self._free -= taken
        return taken

    def give_back(self, most: int) -> None:
        """What `take` gave."""
        self._free += most


class ChunkMetrics(Collector):
    """What a component has of its room: `tandem_<component>_prompt_chunk_bytes`, and
    `_known_prompt_tokens_total`.
    """

    def __init__(self, component: str, room: ChunkRoom, **labels: str) -> None:
        self._component = f"tandem_{component}"
        self._room = room
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            f"{self._component}_prompt_chunk_bytes",
            "Token ids that are kept of earlier prompts, for later prompts to name.",
            self._room.chunks * chunk_bytes(),
            **self._labels,
        )
        yield counter(
            f"{self._component}_known_prompt_tokens",
            "Tokens of prompts that did not travel, as an earlier prompt began with them.",
            self._room.known_tokens,
            **self._labels,
        )


class _Place(NamedTuple):
    """Where a serialised Task has its prompt's token ids."""

    start: int
    end: int
    key: bytes
    """Names of the prompt's chunks are hashed with it."""


class _Chunks(Generic[Kept]):
    """Chunks by their names, the first ones of the last prompt last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()

    def _use(self, names: Names, new: Mapping[bytes, Kept]) -> None:
        """Note a prompt of these chunks, of which `new` were not kept. The prompt's first chunk
        counts as used last, so that a prompt's later chunks are forgotten before its earlier ones.
        """
        self._kept.update(new)
        for name in reversed(names):
            self._kept.move_to_end(name)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)


class SentChunks(_Chunks[None]):
    """A stream's writer: what its reader keeps, who promised `most` chunks. Whatever a reader
    promises, a writer remembers no more names than a stream may have chunks.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__(min(most, STREAM_BYTES // chunk_bytes()))

    def shorten(self, task: bytes, names: Names = ()) -> tuple[bytes, bytes]:
        """What a message that leaves now says of a task: the `known_prompt` of its prompt, and the
        task without that. `names`: of the prompt's chunks, where they are known.
        """
        place = _prompt(task) if self.most and len(task) >= chunk_bytes() else None
        if place is None:
            return b"", task
        token_ids = memoryview(task)[place.start : place.end]
        if names[:1] != names_of(token_ids[: chunk_bytes()], place.key):  # of another salt
            names = names_of(token_ids, place.key)
        known = self._known(names)
        self._use(names, dict.fromkeys(names[known:]))
        if not known:
            return b"", task
        return names[known - 1], _with_prompt(task, place, token_ids[known * chunk_bytes() :])

    def _known(self, names: Names) -> int:
        """How many of a prompt's first chunks the reader keeps."""
        for count in range(len(names), 0, -1):
            if names[count - 1] in self._kept:
                return count
        return 0


class ReadChunks(_Chunks[PromptChunk]):
    """A stream's reader. To be closed with the stream."""

    def __init__(self, room: ChunkRoom) -> None:
        super().__init__(room.take())
        self._room = room

    def close(self) -> None:
        """Keep nothing any longer, and give the room to other streams."""
        self._room.chunks -= len(self._kept)
        self._kept.clear()
        self._room.give_back(self.most)
        self.most = 0

    def complete(self, messages: Iterable[Carrier]) -> list[Names]:
        """Give the messages their whole prompts, in the order in which they were shortened. Returns
        the names of each one's chunks, where any are kept. Raises DecodeError for a name that is
        not known, and where the messages stand for more than one message may hold.
        """
        left = MAX_REQUEST_MESSAGE_BYTES
        found = []
        for message in messages:
            found.append(self._complete(message, left))
            left -= len(message.task) if message.known_prompt else 0
        return found

    def _complete(self, message: Carrier, most: int) -> Names:
        task, name = message.task, message.known_prompt
        looks = bool(name) or (self.most and len(task) >= chunk_bytes())
        place = _prompt(task) if looks else None
        if place is None:
            if name:
                raise DecodeError("a task without token ids has a known prompt")
            return ()
        names, chunks = self._chunks_to(name, (most - len(task)) // chunk_bytes())
        rest = memoryview(task)[place.start : place.end]
        new = names_of(rest, place.key, before=name)
        if name:
            message.task = _with_prompt(task, place, *chunks, rest)
            self._room.known_tokens += len(chunks) * CHUNK_TOKENS
        self._note(names + new, rest)
        return names + new

    def _chunks_to(self, name: bytes, most: int) -> tuple[Names, list[bytes]]:
        """The names and the token ids of the chunks from a prompt's start to the chunk `name`."""
        names: list[bytes] = []
        chunks: list[bytes] = []
        while name:
            if name not in self._kept:
                raise DecodeError("a prompt begins with a chunk that this stream does not know")
            if len(names) >= most:
                raise DecodeError("the prompts of a message are too large")
            names.append(name)
            name, token_ids = self._kept[name]
            chunks.append(token_ids)
        return tuple(reversed(names)), chunks[::-1]

    def _note(self, names: Names, rest: memoryview) -> None:
        """A prompt of these chunks has come, which ends with `rest`."""
        size = chunk_bytes()
        count = len(rest) // size
        before = (b"", *names)
        new = {}
        for place in range(count):
            number = len(names) - count + place
            if names[number] not in self._kept:
                token_ids = bytes(rest[place * size : (place + 1) * size])
                new[names[number]] = PromptChunk(before[number], token_ids)
        self._room.chunks -= len(self._kept)
        self._use(names, new)
        self._room.chunks += len(self._kept)


def names_of(token_ids: memoryview, key: bytes = b"", before: bytes = b"") -> Names:
    """The names of the whole chunks of these packed token ids, which follow the chunk of the name
    `before`; empty: which begin a prompt. `key`: of at most 64 bytes; others make other names.
    """
    size, names = chunk_bytes(), []
    for start in range(0, len(token_ids) - size + 1, size):
        digest = blake2b(before, digest_size=NAME_BYTES, key=key)
        digest.update(token_ids[start : start + size])
        before = digest.digest()
        names.append(before)
    return tuple(names)


def key_of(cache_salt: str | bytes) -> bytes:
    """What the names of a prompt's chunks are hashed with, by the salt that caches know it by."""
    if isinstance(cache_salt, str):
        cache_salt = cache_salt.encode(errors="surrogatepass")
    return blake2b(cache_salt).digest() if cache_salt else b""


def unpacked(names: bytes) -> Names:
    """The names that were joined."""
    return tuple([names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)])


def _prompt(task: bytes) -> _Place | None:
    """None: the task has no token ids, or is no message as we write it."""
    start = end = 0
    salt = b""
    try:
        for number, begin, stop in islice(places(task), _FIELDS):
            if number == _PROMPT and not start:
                start, end = begin, stop
            elif number == _SALT:
                salt = task[begin:stop]
    except ValueError:
        return None
    if not start or not task[:start].endswith(_head(end - start)):
        return None
    return _Place(start, end, key_of(salt))


def _head(size: int) -> bytes:
    """What stands before so many bytes of token ids."""
    return _TOKEN_IDS + write_varint(size)


def _with_prompt(task: bytes, place: _Place, *token_ids: bytes | memoryview) -> bytes:
    """The task with other token ids in the place of its own."""
    before = task[: place.start - len(_head(place.end - place.start))]
    return b"".join((before, _head(sum(map(len, token_ids))), *token_ids, task[place.end :]))
