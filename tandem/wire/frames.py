"""What frames of token output are made of, written and read side by side: rows (TokenColumns), the
envelopes of a worker's frame, and the parts of a router's message.

Payloads are merged by joining their bytes: every field of TokenColumns is repeated. See
proto/tandem/v1/common.proto.

Most frames hold one row and nothing else, and protobuf makes an object of each list that a message
has, and of each that it is asked for: so those are written and read by hand. A reader takes what
its writer writes, where the numbers are small, and leaves all else to protobuf, which reads every
frame.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct

from tandem.v1 import common_pb2, router_pb2, worker_pb2

VARINT: Final = 0
"""The kind of a field that is a number."""
BYTES: Final = 2
"""The kind of a field that begins with its length."""
_LONGEST_VARINT = 10
_SHORT: Final = tuple(bytes((number,)) for number in range(0x80))
"""Encoded numbers below 128: one byte each."""


def write_varint(number: int) -> bytes:
    """A number as it is written: seven bits a byte, the lowest first."""
    if number < 0x80:
        return _SHORT[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + write_varint(number >> 7)


def read_varint(view: bytes | memoryview, place: int) -> tuple[int, int]:
    """The number that is encoded at a place, and where the next byte is.

    Raises ValueError for one without an end.
    """
    value = 0
    for shift in range(_LONGEST_VARINT):
        if place >= len(view):
            break
        byte = view[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place
    raise ValueError("a number without an end")


def _number(written: bytes) -> int | None:
    """The number encoded by exactly these bytes; None: they encode none, or several."""
    try:
        value, end = read_varint(written, 0)
    except ValueError:
        return None
    return value if end == len(written) else None


def head(message: Any, name: str) -> bytes:
    """The bytes that a field of this message's type begins with: its number and its kind."""
    field = message.DESCRIPTOR.fields_by_name[name]
    plain = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) and not field.is_packed
    return write_varint(field.number << 3 | (VARINT if plain else BYTES))


MOST_ROW_TOKENS = 65_536
"""The most of one row; a worker cuts what is larger by far."""
Row = tuple[int, int, int, str]
"""A sequence, how many rows it has had before, how many tokens these are, and their text."""
Part = tuple[int, bytes]
"""A worker, as the router numbers it, and what it wrote: a serialised TokenColumns."""
_SEQUENCE: Final = head(common_pb2.TokenColumns, "sequence")
_OFFSET: Final = head(common_pb2.TokenColumns, "offset")
_TOKEN_COUNT: Final = head(common_pb2.TokenColumns, "token_count")
_TEXT: Final = head(common_pb2.TokenColumns, "text")
_ONE_COUNT: Final = _TOKEN_COUNT + _SHORT[1]
_LONGEST_SEQUENCE, _LONGEST_OFFSET = 8, 4
"""Bytes of numbers that a row may have which is read by hand: those that fit their columns."""
_ENVELOPES: Final = head(worker_pb2.WorkerFrame, "envelopes")
_DESTINATION: Final = head(worker_pb2.Envelope, "destination")
_ENVELOPE_PAYLOAD: Final = head(worker_pb2.Envelope, "payload")
_PAYLOAD: Final = head(router_pb2.RouterMessage, "payload")
_WORKER: Final = head(router_pb2.RouterMessage, "part_worker")
_BYTES: Final = head(router_pb2.RouterMessage, "part_bytes")
_LONGEST_WORKER: Final = 4
"""Bytes of a worker's number that is read by hand."""


class Draft(Struct, eq=False):
    """One destination's output while its frame is being put together. Rows are plain lists: filling
    protobuf columns row by row is slow.
    """

    sequences: list[int] = []
    offsets: list[int] = []
    token_counts: list[int] = []
    texts: list[str] = []
    token_ids: array[int] | None = None
    """Takes no number that cannot be one."""
    _rest: common_pb2.TokenColumns | None = None

    @property
    def rest(self) -> common_pb2.TokenColumns:
        """All that is no row. Most frames have rows alone, so it is made when it is asked for."""
        if self._rest is None:
            self._rest = common_pb2.TokenColumns()
        return self._rest

    def add(
        self,
        sequence: int,
        offset: int,
        token_count: int,
        text: str,
        token_ids: Sequence[int] = (),
    ) -> None:
        """One row, of a sequence that has had `offset` rows before. `token_ids` holds `token_count`
        ids where the sequence wants them, or none.

        Raises OverflowError or TypeError for ids that cannot be, and then takes nothing.
        """
        if token_ids:
            if self.token_ids is None:
                self.token_ids = array("I")
            before = len(self.token_ids)
            try:
                self.token_ids.extend(token_ids)
            except BaseException:
                del self.token_ids[before:]
                raise
        self.sequences.append(sequence)
        self.offsets.append(offset)
        self.token_counts.append(token_count)
        self.texts.append(text)

    def blank(self) -> set[int]:
        """Empty the texts that are no Unicode. Returns their sequences: an end of them that is here
        no longer fits, so that whoever reads it takes the sequence for unreadable.
        """
        blanked = set()
        for place, text in enumerate(self.texts):
            if not _is_unicode(text):
                self.texts[place] = ""
                blanked.add(self.sequences[place])
        for finish in self.rest.finish:
            finish.rows += finish.sequence in blanked
        return blanked

    def serialize(self) -> bytes:
        """Raises ValueError where a text is no Unicode."""
        if len(self.texts) == 1 and self._rest is None and not self.token_ids:
            return write_row(
                self.sequences[0], self.offsets[0], self.token_counts[0], self.texts[0]
            )
        # A column that is named costs as much as a row, also where nothing is in it.
        columns = common_pb2.TokenColumns(
            sequence=self.sequences,
            offset=self.offsets,
            token_count=self.token_counts,
            text=self.texts,
        )
        if self.token_ids:
            columns.token_id.extend(self.token_ids)
        if self._rest is not None:
            columns.MergeFrom(self._rest)
        return columns.SerializeToString()


def parse(payload: bytes) -> common_pb2.TokenColumns:
    """The columns of a payload, joined or not. Raises google.protobuf.message.DecodeError for bytes
    that are none.
    """
    return common_pb2.TokenColumns.FromString(payload)


def write_row(sequence: int, offset: int, token_count: int, text: str) -> bytes:
    """The TokenColumns of one row, serialised, which is the payload of a lone stream: written by
    hand they cost a third of what protobuf takes.
    """
    whose, place = write_varint(sequence), write_varint(offset)
    count, shown = write_varint(token_count), text.encode()
    return b"".join(
        (
            _SEQUENCE,
            _SHORT[len(whose)],
            whose,
            _TOKEN_COUNT,
            _SHORT[len(count)],
            count,
            _TEXT,
            write_varint(len(shown)),
            shown,
            _OFFSET,
            _SHORT[len(place)],
            place,
        )
    )


def read_row(payload: bytes) -> Row | None:
    """The row of a payload that has nothing else and is laid out as `write_row` does it: read by
    hand it costs half of what protobuf takes. None for any other, and where a number is large.
    """
    try:
        if payload[0] != _SEQUENCE[0] or payload[1] > _LONGEST_SEQUENCE:
            return None
        count_at = 2 + payload[1]
        if payload[count_at : count_at + 2] != _ONE_COUNT or payload[count_at + 3] != _TEXT[0]:
            return None
        count, length = payload[count_at + 2], payload[count_at + 4]
        text_at = count_at + 5
        end = text_at + length
        if payload[end] != _OFFSET[0] or payload[end + 1] > _LONGEST_OFFSET:
            return None
        if count >= 0x80 or length >= 0x80 or end + 2 + payload[end + 1] != len(payload):
            return None
        sequence = _number(payload[2:count_at])
        offset = _number(payload[end + 2 :])
        if sequence is None or offset is None:
            return None
        return sequence, offset, count, payload[text_at:end].decode()
    except (IndexError, UnicodeDecodeError):
        return None


def write_envelope(destination: int, payload: bytes) -> bytes:
    """A WorkerFrame of one envelope, serialised. Frames are merged by joining their bytes."""
    envelope = b"".join(
        (
            _DESTINATION,
            write_varint(destination),
            _ENVELOPE_PAYLOAD,
            write_varint(len(payload)),
            payload,
        )
    )
    return b"".join((_ENVELOPES, write_varint(len(envelope)), envelope))


def write_part(worker: int, payload: bytes) -> bytes:
    """The RouterMessage of one part, serialised."""
    whose, size = write_varint(worker), write_varint(len(payload))
    return b"".join(
        (
            _PAYLOAD,
            size,
            payload,
            _WORKER,
            _SHORT[len(whose)],
            whose,
            _BYTES,
            _SHORT[len(size)],
            size,
        )
    )


def read_part(message: bytes) -> Part | None:
    """The part of a message that has nothing else, is laid out as `write_part` does it, and is not
    large. None for any other.
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
        worker = _number(message[at:of_size])
        if not worker or of_size - at > _LONGEST_WORKER:
            return None  # whatever protobuf makes of it
        if message[of_size:] != b"".join((_BYTES, _SHORT[begin - 1], message[1:begin])):
            return None
        return worker, message[begin:end]
    except IndexError:
        return None


def join_parts(parts: Sequence[Part]) -> router_pb2.RouterMessage:
    """A message of these parts; neighbours of one worker become one part."""
    workers: list[int] = []
    sizes: list[int] = []
    for worker, payload in parts:
        if workers and workers[-1] == worker:
            sizes[-1] += len(payload)
        else:
            workers.append(worker)
            sizes.append(len(payload))
    joined = b"".join([payload for _, payload in parts])
    return router_pb2.RouterMessage(payload=joined, part_worker=workers, part_bytes=sizes)


def split_parts(message: router_pb2.RouterMessage, payload: bytes) -> Sequence[Part]:
    """The parts of a message with that payload, in order. Worker 0: the router does not say whose
    payload it is. Raises ValueError where the lengths disagree.
    """
    workers, sizes = message.part_worker[:], message.part_bytes[:]
    if not workers:
        return ((0, payload),)
    if sum(sizes) != len(payload) or 0 in workers:
        raise ValueError("the parts of a payload do not make the whole payload")
    if len(workers) == 1:
        return ((workers[0], payload),)
    ends = accumulate(sizes)
    return [
        (worker, payload[end - size : end])
        for worker, size, end in zip(workers, sizes, ends, strict=True)
    ]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
