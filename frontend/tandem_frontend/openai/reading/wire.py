"""What a frontend and a process that reads bodies say to each other: messages of
tandem/pool/frames.py in MessagePack. The frontend says ReaderBoot, for each model before its first
body, and gets Loaded; each Order gets its one Reply before the next is sent. Before a Reply the
process may ask once, by SegmentNames, for the Beginnings that are known of the order's prompts.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from tandem import errors
from tandem.errors import TandemError
from tandem.pool.boot import Boot
from tandem.v1 import common_pb2
from tandem_frontend.openai.asked import Asked, Origin
from tandem_frontend.openai.prefixes import Known

PROGRAM: Final = "tandem_frontend.openai.reading.process"
MAX_MESSAGE_BYTES: Final = 512 * 1024 * 1024


class ReaderBoot(Boot, frozen=True, kw_only=True, tag=True):
    """All a process must know to read what is for one model, whose name it has. Empty: bodies of
    moderations, which are read without a model.
    """

    settings: dict[str, Any]
    """The settings of a frontend of this model alone, without secrets."""
    seconds: float
    """CPU time that one body may take."""


class ReadingOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A body that is to be read, and what else is known of its request."""

    kind: str
    """The endpoint of a dialect's request or count, or `tokenize`, `detokenize` or `moderation`."""
    model: str
    body: bytes
    served: bytes = b""
    """A tandem.v1.ServedModel: what the workers can take."""
    origin: Origin = Origin()
    asks: bool = False
    """The process is to ask what is known of the prompts."""


class SegmentNames(msgspec.Struct, frozen=True, tag=True):
    """The names of each prompt's segments: see openai/prefixes.py."""

    prompts: list[list[bytes]]


class Beginnings(msgspec.Struct, frozen=True, tag=True):
    """The known beginnings of an order's prompts, one for each list of SegmentNames."""

    known: list[Known]


class Read(msgspec.Struct, frozen=True, tag=True):
    """A request that is to be generated."""

    submission: Asked


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The body of the answer."""

    body: bytes
    ignored: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request has an error."""

    error: bytes
    """A tandem.v1.Error."""

    @staticmethod
    def of(error: TandemError) -> Refused:
        return Refused(error.to_proto().SerializeToString())

    def to_error(self) -> TandemError:
        return errors.from_proto(common_pb2.Error.FromString(self.error))


Reply: TypeAlias = Read | Answered | Refused
Said: TypeAlias = Reply | SegmentNames
Told: TypeAlias = ReaderBoot | ReadingOrder | Beginnings


# The messages of protobuf in a request travel in their own encoding.
encoder = msgspec.msgpack.Encoder(enc_hook=lambda message: message.SerializeToString())
told: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
said: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(
    Said, dec_hook=lambda kind, content: kind.FromString(content)
)
