"""A router's message of one worker's output and nothing else, which is most of what the frontend of
a lone stream is told. It is written and read by hand: protobuf makes an object of each list that a
message has, and of each that it is asked for.
"""

from __future__ import annotations

from typing import Final

from tandem.v1 import router_pb2
from tandem.wire.fields import SHORT, head, number, varint

Part = tuple[int, bytes]
"""A worker, as the router numbers it, and what it wrote."""
_PAYLOAD: Final = head(router_pb2.RouterMessage, "payload")
_WORKER: Final = head(router_pb2.RouterMessage, "part_worker")
_BYTES: Final = head(router_pb2.RouterMessage, "part_bytes")
_LONGEST_WORKER: Final = 4
"""Bytes of a worker's number that is read by hand."""


def write(worker: int, payload: bytes) -> bytes:
    """The RouterMessage of a part, serialised."""
    whose, size = varint(worker), varint(len(payload))
    return b"".join(
        (
            _PAYLOAD,
            size,
            payload,
            _WORKER,
            SHORT[len(whose)],
            whose,
            _BYTES,
            SHORT[len(size)],
            size,
        )
    )


def read(message: bytes) -> Part | None:
    """The part of a message that is no more, laid out as `write` does it, and not large. None for
    any other.
    """
    try:
        size, begin = message[1], 2
        if size >= 0x80:
            size, begin = size & 0x7F | message[2] << 7, 3
        end = begin + size
        if message[0] != _PAYLOAD[0] or message[begin - 1] >= 0x80 or message[end] != _WORKER[0]:
            return None
        at = end + 2
        of_size = at + message[end + 1]
        worker = number(message[at:of_size])
        if not worker or of_size - at > _LONGEST_WORKER:
            return None  # whatever protobuf makes of it
        if message[of_size:] != b"".join((_BYTES, SHORT[begin - 1], message[1:begin])):
            return None
        return worker, message[begin:end]
    except IndexError:
        return None
