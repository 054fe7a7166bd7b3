"""Rows of token output to and from the wire's columnar payload (tandem.v1.TokenColumns).

Payloads are merged by joining their bytes: every field is repeated. See
proto/tandem/v1/common.proto.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tandem.v1 import common_pb2

MOST_ROW_TOKENS = 65_536
"""The most of one row; a worker cuts what is larger by far."""


class Draft:
    """One destination's output while its frame is being put together. Plain lists: filling protobuf
    columns row by row is slow.
    """

    __slots__ = (
        "finishes",
        "logprobs",
        "offsets",
        "prompt_logprobs",
        "reports",
        "sequences",
        "texts",
        "token_counts",
        "token_ids",
    )

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.offsets: list[int] = []
        self.token_counts: list[int] = []
        self.texts: list[str] = []
        self.token_ids = array("I")
        """Takes no number that cannot be one."""
        self.logprobs: list[common_pb2.TokenLogprobs] = []
        self.prompt_logprobs: list[common_pb2.TokenLogprobs] = []
        self.finishes: list[common_pb2.Finish] = []
        self.reports: list[common_pb2.PhaseReport] = []

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
        for finish in self.finishes:
            finish.rows += finish.sequence in blanked
        return blanked

    def serialize(self) -> bytes:
        """Raises ValueError where a text is no Unicode."""
        return common_pb2.TokenColumns(
            sequence=self.sequences,
            offset=self.offsets,
            token_count=self.token_counts,
            text=self.texts,
            token_id=self.token_ids,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            finish=self.finishes,
            report=self.reports,
        ).SerializeToString()


def parse(payload: bytes) -> common_pb2.TokenColumns:
    """The columns of a payload, joined or not. Raises google.protobuf.message.DecodeError for bytes
    that are none.
    """
    return common_pb2.TokenColumns.FromString(payload)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
