"""Rows of token output to and from the wire's columnar payload (tandem.v1.TokenColumns).

Payloads are merged by joining their bytes: every field is repeated. See
proto/tandem/v1/common.proto.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tandem.v1 import common_pb2
from tandem.wire.fields import SHORT, head, number, varint

MOST_ROW_TOKENS = 65_536
"""The most of one row; a worker cuts what is larger by far."""
_SEQUENCE: Final = head(common_pb2.TokenColumns, "sequence")
_OFFSET: Final = head(common_pb2.TokenColumns, "offset")
_TOKEN_COUNT: Final = head(common_pb2.TokenColumns, "token_count")
_TEXT: Final = head(common_pb2.TokenColumns, "text")
_ONE_COUNT: Final = _TOKEN_COUNT + SHORT[1]
_LONGEST_SEQUENCE, _LONGEST_OFFSET = 8, 4
"""Bytes of numbers that a row may have which is read by hand: those that fit their columns."""

Row = tuple[int, int, int, str]
"""A sequence, how many rows it has had before, how many tokens these are, and their text."""


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
            return _row(self.sequences[0], self.offsets[0], self.token_counts[0], self.texts[0])
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


def lone_row(payload: bytes) -> Row | None:
    """The row of a payload that has nothing else and is laid out as `_row` does it, which is what a
    lone stream has: read by hand it costs half of what protobuf takes. None for any other, and
    where a number is large: those are for `parse`.
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
        sequence = number(payload[2:count_at])
        offset = number(payload[end + 2 :])
        if sequence is None or offset is None:
            return None
        return sequence, offset, count, payload[text_at:end].decode()
    except (IndexError, UnicodeDecodeError):
        return None


def _row(sequence: int, offset: int, token_count: int, text: str) -> bytes:
    """The columns of one row, which is what a frame of a lone stream has: written by hand they cost
    a third of what protobuf takes.
    """
    whose, place = varint(sequence), varint(offset)
    count, shown = varint(token_count), text.encode()
    return b"".join(
        (
            _SEQUENCE,
            SHORT[len(whose)],
            whose,
            _TOKEN_COUNT,
            SHORT[len(count)],
            count,
            _TEXT,
            varint(len(shown)),
            shown,
            _OFFSET,
            SHORT[len(place)],
            place,
        )
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
